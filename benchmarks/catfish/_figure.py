"""What all figures share: points, their rows and pictures, and the command line."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from benchmarks import _harness, _report

METRICS = {
    "rate": ("searches and inserts of all clients", "1/s"),
    "mean_us": ("mean time of a request", "us"),
    "p99_us": ("99th percentile of the time of a request", "us"),
    "busy_share": ("busy share of the server", "1"),
    "link_share": ("share of the link that the server's answers take", "1"),
    "bytes_per_s": ("bytes that the server sent", "B/s"),
    "offloaded": ("searches that clients did themselves", "1"),
    "vs_best": ("adaptive over the better pure mode", "1"),
    "vs_sum": ("adaptive over the sum of both pure modes", "1"),
}
KEYS = ("case", "goal", "metric", "unit", "method", "x", "value", "setup", "simulated", "n")
CLUSTER = "simulated: 28 cores, 100 Gb/s"
HERE = "measured: this machine"


@attrs.frozen
class Point:
    """What was found for a method at a place of the horizontal axis."""

    panel: str
    method: str
    x: float
    values: dict[str, tuple[float, ...]]
    """By the key of `METRICS`: one for each round."""
    simulated: bool
    goal: str | None = None
    setup: str = ""
    """Where: a row of panels each; nothing: `CLUSTER` or `HERE`."""

    @property
    def place(self) -> str:
        return self.setup or (CLUSTER if self.simulated else HERE)


class Pace:
    """As many rounds as are wanted, fewer where the time of the whole run would not do.

    The time that is left is shared out over the parts that are left; each gets one round at least.
    """

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end_s = now() + 60 * minutes

    def rounds(self, wanted: int, parts_left: int) -> Iterator[int]:
        """Give the numbers of the rounds of a part."""
        began = self._now()
        share_s = (self._end_s - began) / parts_left
        for number in range(wanted):
            taken_s = self._now() - began
            if number and taken_s * (number + 1) / number > share_s:
                return
            yield number


@attrs.frozen
class Scope:
    """How much is to be done."""

    quick: bool = False
    full: bool = False
    rounds: int = 5
    seconds: float = 0.25
    pace: Pace = attrs.field(factory=lambda: Pace(4.0))
    measured: bool = True
    simulated: bool = True

    @property
    def warm_up_s(self) -> float:
        """How long clients ask before they count.

        A policy hears some heartbeats then, and tries what it tries in windows of four of them.
        """
        return 0.02 if self.quick else 0.3

    @property
    def entries(self) -> int:
        """Rectangles in the tree of what is measured."""
        return 2_000_000 if self.full else 20_000 if self.quick else 200_000

    def some(self, *counts: int) -> tuple[int, ...]:
        """Return these numbers of clients, or the first two of them."""
        return counts[:2] if self.quick else counts


@attrs.frozen
class Axis:
    """One picture of a row of panels."""

    metric: str
    label: str
    log: bool = True
    share: bool = False
    """From 0 to 100 %."""


@attrs.frozen
class Figure:
    number: int
    title: str
    points: Callable[[Scope], Iterator[Point]]
    axes: tuple[Axis, ...]
    across: str = "clients"

    def main(self, arguments: Sequence[str]) -> int:
        """Run as ``catfish-figN``."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks catfish-fig{self.number}", description=self.title
        )
        parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there too")
        parser.add_argument("--png", metavar="FILE", type=Path, help="draw the figure")
        parser.add_argument("--from", metavar="FILE", type=Path, dest="kept", nargs="+", help=KEPT)
        parser.add_argument("--quick", action="store_true", help="shows that it runs")
        parser.add_argument("--full", action="store_true", help="2,000,000 rectangles")
        parser.add_argument("--rounds", type=int, default=5, help="of what is measured, at most")
        parser.add_argument("--seconds", type=float, default=0.25, help="of each measurement")
        parser.add_argument("--minutes", type=float, default=4, help="fewer rounds if need be (4)")
        only = parser.add_mutually_exclusive_group()
        only.add_argument("--simulated-only", action="store_true")
        only.add_argument("--measured-only", action="store_true")
        chosen = parser.parse_args(arguments)
        if chosen.rounds < 1 or not chosen.seconds > 0 or not chosen.minutes > 0:
            parser.error("--rounds, --seconds and --minutes: expected more than 0")
        rows = kept(chosen.kept) if chosen.kept else self._run(scope_of(chosen), chosen.json)
        if chosen.png:
            from benchmarks.catfish import _draw

            _draw.draw(chosen.png, self.title, self.axes, self.across, rows)
        return 0

    def _run(self, scope: Scope, path: Path | None) -> list[dict[str, Any]]:
        """Write each row as soon as it is known: who ends a run keeps what it found."""
        rows: list[dict[str, Any]] = []
        with ExitStack() as stack:
            stack.enter_context(_report.Report())
            files = [sys.stdout]
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.append(stack.enter_context(path.open("w", encoding="utf-8")))
            for point in self.points(scope):
                for row in rows_of(f"catfish-fig{self.number}", point):
                    for file in files:
                        print(json.dumps(row), file=file, flush=True)
                    rows.append(row)
        return rows


KEPT = "run nothing; draw what these runs found"


def scope_of(chosen: argparse.Namespace) -> Scope:
    quick = chosen.quick
    return Scope(
        quick=quick,
        full=chosen.full,
        rounds=1 if quick else chosen.rounds,
        seconds=0.05 if quick else chosen.seconds,
        pace=Pace(chosen.minutes),
        measured=not chosen.simulated_only,
        simulated=not chosen.measured_only,
    )


def rows_of(case: str, point: Point) -> Iterator[dict[str, Any]]:
    """Make a row for each metric of a point."""
    for key, values in point.values.items():
        name, unit = METRICS[key]
        yield {
            "case": f"{case}/{point.panel}",
            "goal": point.goal if key in ("rate", "vs_best", "vs_sum") else None,
            "metric": name,
            "unit": unit,
            "method": point.method,
            "x": point.x,
            "value": _harness.spread(values),
            "setup": point.place,
            "simulated": point.simulated,
            "n": len(values),
        }


def kept(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def left_out(what: str, reason: object) -> None:
    print(f"catfish: {what} left out: {reason}", file=sys.stderr)
