"""Figure 12: throughput of nine searches to one insert."""

from collections.abc import Iterator

from benchmarks.catfish import _served, _simulated
from benchmarks.catfish._figure import Figure, Point, Scope
from benchmarks.catfish.fig10 import SCALES, THROUGHPUT

INSERT_SHARE = 0.1


def mixed(scope: Scope) -> Iterator[Point]:
    """Nine searches to one skewed insert: simulated and measured."""
    yield from _simulated.points(scope, SCALES, INSERT_SHARE)
    yield from _served.points(scope, _served.of_paper(scope, SCALES), INSERT_SHARE)


main = Figure(12, "Figure 12: throughput, 90 % search, 10 % insert", mixed, (THROUGHPUT,)).main
