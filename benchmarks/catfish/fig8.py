"""Figure 8: what reading the nodes of a level at once saves one client."""

from collections.abc import Iterator

import attrs

from benchmarks.catfish._figure import Axis, Figure, Point, Scope
from benchmarks.catfish._simulated import values
from benchmarks.simulator import costs, methods
from benchmarks.simulator.cluster import Setting, simulate

NODES = {
    1e-5: costs.MEASURED["1e-05"].nodes,
    1e-4: (1.0, 1.3, 1.23, 0.94),
    1e-3: (1.0, 1.3, 1.26, 1.25),
    1e-2: costs.MEASURED["0.01"].nodes,
}


def points(scope: Scope) -> Iterator[Point]:
    """One client that reads by itself, at four scales."""
    if not scope.simulated:
        return
    scaled = costs.as_in_the_paper(costs.MEASURED)["1e-05"]
    per_node_s = scaled.search_s / sum(scaled.nodes)
    for method in methods.all_methods():
        if method.name not in (methods.OFFLOADING, methods.MULTI):
            continue
        for scale, nodes in NODES.items():
            of = attrs.evolve(scaled, nodes=nodes, search_s=per_node_s * sum(nodes))
            result = simulate(method, Setting(of, costs.PAPER_CORES, clients=1))
            yield Point("one client", method.name, scale, values(result, method), True)


main = Figure(
    8,
    "Figure 8: offloading with multi-issue",
    points,
    (Axis("mean_us", "mean latency (us)", log=False),),
    across="scale",
).main
