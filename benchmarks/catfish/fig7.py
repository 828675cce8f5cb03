"""Figure 7: workers that poll, that sleep, and that poll a while before they sleep."""

from collections.abc import Iterator

from benchmarks.catfish import _served
from benchmarks.catfish._figure import Axis, Figure, Point, Scope
from benchmarks.simulator import costs
from benchmarks.simulator.threads import Crowd, mean_latency_s

CLIENTS = (80, 160, 240, 320)
NAMES = {True: "polling threads", False: "sleeping threads"}
PANEL = "scale 0.00001"


def points(scope: Scope) -> Iterator[Point]:
    """Threads of the paper's cluster, simulated; our workers and processes, measured."""
    if scope.simulated:
        work_s = costs.PAPER_CORES / costs.PAPER_SEARCHES_PER_S
        for polls, name in NAMES.items():
            for clients in scope.some(*CLIENTS):
                crowd = Crowd(
                    clients, costs.PAPER_CORES, work_s, polls, seconds=0.6 if polls else 0.1
                )
                taken_s = mean_latency_s(crowd)
                found = {"mean_us": (taken_s * 1e6,), "rate": (clients / taken_s,)}
                yield Point(PANEL, name, clients, found, True)
    data = _served.of_paper(scope, ("1e-05",))
    yield from _served.points(scope, data, setups=(_served.WAITING,))


main = Figure(
    7,
    "Figure 7: polling and events",
    points,
    (Axis("mean_us", "mean latency (us)"), Axis("rate", "requests/s")),
).main
