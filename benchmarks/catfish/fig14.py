"""Figure 14: data with the clusters of the real world, in place of rea02."""

from collections.abc import Iterator

from benchmarks.catfish import _served, _simulated, rea02
from benchmarks.catfish._figure import Figure, Point, Scope
from benchmarks.catfish.fig10 import LATENCY, THROUGHPUT


def points(scope: Scope) -> Iterator[Point]:
    """Searches that find 50 to 150: simulated with what they visit, measured on the stand-ins."""
    yield from _simulated.points(scope, ("rea02",))
    for name, made in rea02.sources(scope.full, scope.quick):
        yield from _served.points(scope, (name,), data=made)


main = Figure(14, "Figure 14: stand-ins for rea02", points, (THROUGHPUT, LATENCY)).main
