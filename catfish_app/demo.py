"""``python -m catfish_app.demo``: the world's coasts and borders, served to several processes.

Starts a server process, loads 472,660 segments into it, lets client processes search it over
connections that upgrade themselves, compares with clients that must stay on sockets, checks
answers, and draws a map. Leaves a map and a report behind, and nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

_NEEDED = ("numpy", "rich", "typer", "matplotlib")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m catfish_app.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each run searches")
    parser.add_argument("--clients", type=int, default=4, help="client processes at a time")
    parser.add_argument("--workers", type=int, default=1, help="worker threads of the server")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where to write")
    options = parser.parse_args(arguments)
    if options.clients < 1 or options.workers < 1 or not 0 < options.seconds <= 600:
        parser.error("--clients and --workers are at least 1, --seconds more than 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return its exit status."""
    options = parse(arguments)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"The demo needs {', '.join(missing)}, not installed here."
            " Install the extra with: pip install 'l5net[demo]'",
            file=sys.stderr,
        )
        return 1
    from catfish_app._demo_run import run_demo

    return run_demo(options)


if __name__ == "__main__":
    sys.exit(main())
