"""Points from the simulator: a cluster as the paper's, 28 cores and 100 Gb/s."""

from collections.abc import Iterator, Sequence

from benchmarks import _report
from benchmarks.catfish._figure import Point, Scope
from benchmarks.simulator import costs, methods
from benchmarks.simulator.cluster import Method, Result, Setting, simulate

CLIENTS = (2, 8, 32, 64, 128, 256)
TITLES = {"1e-05": "scale 0.00001", "0.01": "scale 0.01", "pl": "power law", "rea02": "rea02"}
SHOWN = (
    methods.TCP_1G,
    methods.TCP_40G,
    methods.FAST,
    methods.OFFLOADING,
    methods.EVENT,
    methods.MULTI,
    methods.LITERAL,
    methods.ADAPTIVE,
)


def values(result: Result, method: Method) -> dict[str, tuple[float, ...]]:
    return {
        "rate": (result.rate,),
        "mean_us": (result.mean_s * 1e6,),
        "p99_us": (result.p99_s * 1e6,),
        "busy_share": (result.busy_share,),
        "bytes_per_s": (result.link_share * method.link.bytes_per_s,),
        "offloaded": (result.offloaded,),
    }


def setting(scale: str, clients: int, insert_share: float, quick: bool, method: Method) -> Setting:
    """Return a run of the paper's cluster, as long as what it shows needs.

    Who adapts has to hear heartbeats first; who does not is soon in its stride.
    """
    of = costs.as_in_the_paper(costs.MEASURED)[scale]
    adapts = method.name in (methods.LITERAL, methods.ADAPTIVE)
    warm_up_s, seconds = (0.12, 0.18) if adapts else (0.02, 0.06)
    if quick:
        warm_up_s, seconds = 0.03, 0.06
    return Setting(
        of,
        costs.PAPER_CORES,
        clients,
        insert_share=insert_share,
        warm_up_s=warm_up_s,
        seconds=seconds,
    )


def points(scope: Scope, scales: Sequence[str], insert_share: float = 0.0) -> Iterator[Point]:
    """Simulate all methods, scales and numbers of clients."""
    if not scope.simulated:
        return
    chosen = [each for each in methods.all_methods() if each.name in SHOWN]
    counts = scope.some(*CLIENTS)
    for scale in scales:
        _report.begin(f"simulated, {TITLES[scale]}", len(counts) * len(chosen))
        for clients in counts:
            found: dict[str, Result] = {}
            for method in chosen:
                of = setting(scale, clients, insert_share, scope.quick, method)
                found[method.name] = result = simulate(method, of)
                _report.advance()
                yield Point(TITLES[scale], method.name, clients, values(result, method), True)
            yield judged(TITLES[scale], clients, {k: v.rate for k, v in found.items()}, True)


def judged(panel: str, clients: int, rates: dict[str, float], simulated: bool) -> Point:
    """Compare what adapts with the pure modes: goal R9."""
    server, client = rates[methods.EVENT], rates[methods.MULTI]
    adaptive = rates[methods.ADAPTIVE]
    ratios = {
        "vs_best": (adaptive / max(server, client),),
        "vs_sum": (adaptive / (server + client),),
    }
    return Point(panel, methods.ADAPTIVE, clients, ratios, simulated, goal="R9")
