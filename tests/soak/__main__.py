"""Soak by hand: ``python -m tests.soak --seconds 3600``; see docs/testing.md."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ._referee import Referee, Settings
from ._sabotage import FAULTS

LINE_EVERY_S = 10.0


def progress() -> Callable[[str], None]:
    """Return how to show the state: a live line on a terminal, else a line now and then."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            return lambda text: print(f"\r{text}", end="", flush=True)
        status = Console().status("")
        status.start()
        return status.update
    last = time.monotonic()

    def line(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            print(text, flush=True)

    return line


def main() -> int:
    """Run a soak; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Soak l5.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--hang", type=float, default=40.0, help="seconds that nothing may wait")
    parser.add_argument("--calm", action="store_true", help="nobody is killed or stopped")
    parser.add_argument("--json", type=Path, help="write the summary there")
    parser.add_argument("--keep", type=Path, help="a new folder for what the processes write")
    parser.add_argument("--sabotage", default="", choices=["", *FAULTS], help="a fault on purpose")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    settings = Settings(
        seconds=given.seconds,
        seed=seed,
        processes=given.processes,
        hang_s=given.hang,
        sabotage=given.sabotage,
        disturb=not given.calm,
    )
    print(f"seed {seed}: again with --seed {seed} --processes {given.processes}", flush=True)
    with tempfile.TemporaryDirectory(prefix="l5-soak-") as temporary:
        folder = Path(temporary)
        if given.keep:
            folder = given.keep
            folder.mkdir(parents=True)
        result = Referee(settings, folder, progress()).run()
    print(json.dumps(result.summary, indent=2))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result.summary, indent=2) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
