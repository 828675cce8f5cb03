"""``python -m l5``, and the command ``l5``."""

from __future__ import annotations

import sys

_EXTRA = frozenset({"typer", "rich", "click", "shellingham"})


def main() -> None:
    """Run the command line; says what to install when its extra is missing."""
    try:
        from l5._cli import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(
            f"The command l5 needs {package}, which is not installed."
            " Install the extra with: pip install 'l5net[cli]'"
        )
    app()


if __name__ == "__main__":
    main()
