"""Figure 14: data with the clusters of the real world, in place of rea02."""

from collections.abc import Iterator

from benchmarks.catfish import _served, _simulated, rea02
from benchmarks.catfish._figure import Figure, Point, Scope
from benchmarks.catfish.fig10 import LATENCY, THROUGHPUT

ONE_SOURCE = len(_served.CLIENTS) * len(_served.SETUPS)


def points(scope: Scope) -> Iterator[Point]:
    """Searches that find 50 to 150: simulated with what they visit, measured on the stand-ins."""
    yield from _simulated.points(scope, ("rea02",))
    if not scope.measured:
        return
    left = len(rea02.SOURCES)
    for made in rea02.sources(scope.full, scope.quick):
        left -= 1
        yield from _served.points(scope, [made], parts_after=left * ONE_SOURCE)


main = Figure(14, "Figure 14: stand-ins for rea02", points, (THROUGHPUT, LATENCY)).main
