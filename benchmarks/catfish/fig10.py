"""Figure 10: throughput of searches alone."""

from collections.abc import Iterator

from benchmarks.catfish import _served, _simulated
from benchmarks.catfish._figure import Axis, Figure, Point, Scope

SCALES = ("1e-05", "0.01", "pl")


def searches(scope: Scope) -> Iterator[Point]:
    """Search only, at all scales: simulated and measured."""
    yield from _simulated.points(scope, SCALES)
    yield from _served.points(scope, _served.of_paper(scope, SCALES))


THROUGHPUT = Axis("rate", "requests/s")
LATENCY = Axis("mean_us", "mean latency (us)")
main = Figure(10, "Figure 10: throughput, 100 % search", searches, (THROUGHPUT,)).main
