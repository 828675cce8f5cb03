"""Figure 2: what a server over TCP runs out of first, its processors or its link."""

from collections.abc import Iterator

import attrs

from benchmarks.catfish import _served, _simulated
from benchmarks.catfish._figure import Axis, Figure, Point, Scope
from benchmarks.simulator import methods
from benchmarks.simulator.cluster import simulate

SCALES = ("0.01", "1e-05")
CLIENTS = (2, 4, 8, 16, 32, 64)
SETUP = "simulated: 28 cores, 1 Gb/s"
HIT_BYTES = 40
"""The paper's server answers with rectangles, and ours with their ids."""


def points(scope: Scope) -> Iterator[Point]:
    """TCP over 1 Gb/s, simulated; over the loopback of this machine, measured."""
    for scale in SCALES:
        if scope.simulated:
            for method in methods.all_methods():
                if method.name != methods.TCP_1G:
                    continue
                for clients in scope.some(*CLIENTS):
                    of = _simulated.setting(scale, clients, 0.0, scope.quick, method)
                    result = simulate(
                        method, attrs.evolve(of, costs=attrs.evolve(of.costs, hit_bytes=HIT_BYTES))
                    )
                    found = _simulated.values(result, method)
                    found["link_share"] = (result.link_share,)
                    del found["bytes_per_s"]
                    panel = _simulated.TITLES[scale]
                    yield Point(panel, method.name, clients, found, True, setup=SETUP)
    data = _served.of_paper(scope, SCALES)
    yield from _served.points(scope, data, setups=(_served.OVER_TCP,))


main = Figure(
    2,
    "Figure 2: load of a server over TCP",
    points,
    (
        Axis("busy_share", "server busy", log=False, share=True),
        Axis("link_share", "link busy", log=False, share=True),
        Axis("bytes_per_s", "bytes/s sent"),
    ),
).main
