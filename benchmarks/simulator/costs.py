"""What requests cost: measured here, or scaled so that a server is as fast as the paper's.

Measured are a search and an insert in process, by scale, and how many nodes of each level a search
visits; `MEASURED` has what was found on the machine of docs/performance.md, `measure` finds it
anew.  The paper's server, 28 cores, answers 470,000 searches a second at 1e-5 when it sleeps for
events (its figure 7): 60 us of a core each, where ours needs less than one.  All work in the tree
is scaled by that, by one factor; messages and the link are not.  What a client does with a node
that it has read is what the server does, and checking it.
"""

import time
from collections.abc import Mapping

import attrs

from benchmarks.rtree_peers import workload

NODE_BYTES = 1024
REQUEST_BYTES = 64
HIT_BYTES = 8
CHECKING = 1.25
"""What versions in each line cost (docs/performance.md)."""
PAPER_CORES = 28
PAPER_SEARCHES_PER_S = 470_000.0


@attrs.frozen
class Costs:
    """Of one scale; times are seconds of a core."""

    search_s: float
    insert_s: float
    nodes: tuple[float, ...]
    """That a search visits, level by level from the root."""
    hits: float
    message_s: float = 0.45e-6
    """What a server pays for a request beside its work: finding it, answering."""
    kernel_s: float = 8e-6
    """What it pays more for each message of a socket."""
    hit_bytes: int = HIT_BYTES

    @property
    def node_s(self) -> float:
        """What a client pays to check a node that it has read, and to look at it."""
        return CHECKING * self.search_s / sum(self.nodes)

    @property
    def reply_bytes(self) -> int:
        return REQUEST_BYTES + round(self.hit_bytes * self.hits)

    def scaled(self, factor: float) -> "Costs":
        """Return the costs on a machine whose work in the tree takes so much longer."""
        return attrs.evolve(self, search_s=self.search_s * factor, insert_s=self.insert_s * factor)


MEASURED: Mapping[str, Costs] = {
    "1e-05": Costs(0.45e-6, 1.6e-6, (1.0, 1.26, 1.28, 0.92), 0.006),
    "0.01": Costs(2.6e-6, 2.9e-6, (1.0, 1.32, 1.77, 5.8), 50.7),
    "pl": Costs(0.75e-6, 2.1e-6, (1.0, 1.24, 1.32, 1.46), 3.9),
    "rea02": Costs(2.1e-6, 1.75e-6, (1.0, 2.16, 2.73, 12.4), 100.9),
}


def as_in_the_paper(costs: Mapping[str, Costs]) -> dict[str, Costs]:
    """Scale so that 28 cores answer as many searches as the paper's server."""
    of = costs["1e-05"]
    factor = (PAPER_CORES / PAPER_SEARCHES_PER_S - of.message_s) / of.search_s
    return {scale: each.scaled(factor) for scale, each in costs.items()}


def measure(entries: int = 200_000, seconds: float = 0.2) -> dict[str, Costs]:
    """Measure searches and inserts in process; nodes and the costs of messages stay as they are."""
    from catfish_app import RTree

    tree = RTree.bulk(workload.data(entries))
    found: dict[str, Costs] = {}
    for scale in workload.SCALES:
        known = MEASURED[scale]
        queries = workload.queries(scale, 4000)
        counts, _ = tree.search_many(queries)
        search_s = _best(lambda q=queries: tree.search_many(q), len(queries), seconds)
        hits = len(tree.search_many(queries)[1]) / len(queries)
        del counts
        found[scale] = attrs.evolve(known, search_s=search_s, hits=max(hits, 0.0))
    for scale in workload.SCALES:
        rects = workload.inserts(scale, 4000)
        insert_s = _best(lambda r=rects: tree.insert_many(r), len(rects), seconds / 4)
        found[scale] = attrs.evolve(found[scale], insert_s=insert_s)
    return found


def _best(work: object, count: int, seconds: float) -> float:
    """Return what one of `count` costs, in the fastest of the runs within some seconds."""
    assert callable(work)
    least, end = float("inf"), time.perf_counter() + seconds
    while True:
        before = time.perf_counter()
        work()
        now = time.perf_counter()
        least = min(least, now - before)
        if now >= end:
            return least / count
