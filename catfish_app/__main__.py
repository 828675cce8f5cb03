"""``python -m catfish_app``, and the command ``catfish``."""

from __future__ import annotations

import sys

_EXTRAS = {"typer": "cli", "rich": "cli", "click": "cli", "shellingham": "cli", "numpy": "catfish"}


def main() -> None:
    """Run the command line; says what to install when an extra is missing."""
    try:
        from catfish_app._cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        sys.exit(
            f"The command catfish needs {package}, which is not installed."
            " Install the extras with: pip install 'l5net[cli,catfish]'"
        )
    app()


if __name__ == "__main__":
    main()
