"""The R-tree in process, on the workload of the Catfish paper, against its peers.

Goals: R1 packed tree, R2 the same in another's memory with the version of every line checked, and
R3 dynamic tree in a C loop, against Boost's; R4 one Python call a search,
R5 one call for all, against boostree; R6 insertion from Python, against libspatialindex (`rtree`);
R10 the dynamic tree on stand-ins for the paper's real data, against Boost's.
shapely and `rtree` are measured beside, without a goal.

Ours and the peer take turns on the same operations in the same minute; `ratio` is ours over the
peer's, pair by pair. Hits are compared: a peer that finds another number ends the run.
"""

import statistics
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.catfish import rea02
from benchmarks.rtree_peers import programs, workload
from benchmarks.rtree_peers.workload import SCALES
from catfish_app._rtree import RTree

Row = dict[str, Any]
Timed = Callable[[], tuple[float, int]]
"""Does it once; returns operations per second and the number of hits."""


class Size:
    """How much of everything."""

    def __init__(
        self, quick: bool, rounds: int | None = None, goals: Collection[str] | None = None
    ) -> None:
        self.quick, self.goals = quick, goals
        self.entries = 200_000 if quick else 2_000_000
        self.rounds = rounds or (3 if quick else 5)
        self.c_searches = {"1e-05": 100_000, "0.01": 50_000, "pl": 100_000}
        self.c_inserts = 10_000 if quick else 20_000
        self.python_searches = {"1e-05": 20_000, "0.01": 5_000, "pl": 20_000}
        self.python_inserts = 1_000 if quick else 4_000

    def wants(self, *goals: str | None) -> bool:
        """Tell whether one of these goals is asked for; without a choice everything is."""
        return self.goals is None or any(goal in self.goals for goal in goals)


def run(
    quick: bool, rounds: int | None = None, goal: Collection[str] | None = None
) -> Iterator[Row]:
    """Measure all cases, or those of some goals; yield one row a case and peer as it is done."""
    size = Size(quick, rounds, goal)
    for cases in (
        c_packed_cases,
        c_foreign_cases,
        c_dynamic_cases,
        c_rea02_cases,
        python_search_cases,
        python_insert_cases,
    ):
        try:
            yield from cases(size)
        except programs.Unavailable as reason:
            print(f"rtree: {cases.__name__} left out: {reason}", file=sys.stderr)
        except ModuleNotFoundError as error:
            print(
                f"rtree: {cases.__name__} left out: {error.name} is not installed", file=sys.stderr
            )


def compare(
    case: str, goal: str | None, metric: str, peer: str, pair: tuple[Timed, Timed], rounds: int
) -> Row:
    """Let ours and the peer take turns; who begins changes, too."""
    ours: list[float] = []
    theirs: list[float] = []
    for i in range(rounds + 1):
        results: dict[int, tuple[float, int]] = {}
        for which in (0, 1) if i % 2 else (1, 0):
            results[which] = pair[which]()
        if results[0][1] != results[1][1]:
            raise RuntimeError(f"{case}: {results[0][1]} hits, {peer} has {results[1][1]}")
        if i > 0:  # the first round warms up
            ours.append(results[0][0])
            theirs.append(results[1][0])
    return {
        "case": case,
        "goal": goal,
        "metric": metric,
        "unit": "1/s",
        "ours": spread(ours),
        "peer": peer,
        "peer_value": spread(theirs),
        "ratio": spread([a / b for a, b in zip(ours, theirs, strict=True)]),
        "n": rounds,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "max": round(max(values), 3),
    }


# ---- C loops: R1, R2, R3, R10 ----


@contextmanager
def loops(
    size: Size, how: str, *, peer_how: str | None = None, every_line: bool = False
) -> Generator[tuple[programs.Loop, programs.Loop]]:
    folder = programs.BUILD / f"data-{size.entries}"
    workload.write(folder, size.entries, 200_000)
    with loops_on(folder, how, peer_how=peer_how, every_line=every_line) as pair:
        yield pair


@contextmanager
def loops_on(
    folder: Path, how: str, *, peer_how: str | None = None, every_line: bool = False
) -> Generator[tuple[programs.Loop, programs.Loop]]:
    ours, boost = programs.build_ours(every_line=every_line), programs.build_boost()
    with (
        programs.Loop(ours, folder, how) as a,
        programs.Loop(boost, folder, peer_how or how) as b,
    ):
        yield a, b


def c_packed_cases(size: Size) -> Iterator[Row]:
    if not size.wants("R1", None):
        return
    peer = "boost rstar<16> packed"
    with loops(size, "packed") as (ours, boost):
        if size.wants(None):
            yield build_row("c-packed-build", peer, ours, boost, size.entries)
        for what, case, goal in (
            ("search", "c-packed-search", "R1"),
            ("many", "c-packed-search-many", None),
        ):
            for scale in SCALES if size.wants(goal) else ():
                pair = c_pair(ours, what, boost, "search", scale, size.c_searches[scale])
                yield compare(f"{case}/{scale}", goal, "searches", peer, pair, size.rounds)


def c_foreign_cases(size: Size) -> Iterator[Row]:
    """As a client reads the tree of its server: another mapping, read-only, every index checked."""
    for every_line, case, goal in (
        (True, "c-foreign-search-lines", "R2"),
        (False, "c-foreign-search", None),
    ):
        if not size.wants(goal):
            continue
        with loops(size, "foreign", peer_how="packed", every_line=every_line) as (ours, boost):
            for scale in SCALES:
                pair = c_pair(ours, "search", boost, "search", scale, size.c_searches[scale])
                peer = "boost rstar<16> packed"
                yield compare(f"{case}/{scale}", goal, "searches", peer, pair, size.rounds)


def c_dynamic_cases(size: Size) -> Iterator[Row]:
    if not size.wants("R3", None):
        return
    peer = "boost rstar<16> inserted"
    metrics = {"search": "searches", "insert": "insertions", "mix": "operations"}
    with loops(size, "inserted") as (ours, boost):
        if size.wants(None):
            yield build_row("c-dynamic-build", peer, ours, boost, size.entries)
        for what, metric in metrics.items():
            for scale in SCALES if size.wants("R3") else ():
                count = size.c_inserts if what != "search" else size.c_searches[scale]
                pair = c_pair(ours, what, boost, what, scale, count)
                case = f"c-dynamic-{what}/{scale}"
                yield compare(case, "R3", metric, peer, pair, size.rounds)


def c_rea02_cases(size: Size) -> Iterator[Row]:
    """As R3, on streets and shorelines in the order in which rea02 has them."""
    if not size.wants("R10"):
        return
    peer, folder = "boost rstar<16> inserted", programs.BUILD / "rea02"
    folder.mkdir(parents=True, exist_ok=True)
    for data in rea02.sources(full=not size.quick, quick=size.quick):
        for name, rects in (
            ("data", data.rects),
            ("q_found", data.queries),
            ("i_found", data.inserts),
        ):
            rects.tofile(folder / f"{name}.f64")
        with loops_on(folder, "inserted") as (ours, boost):
            for what, metric, count in (
                ("search", "searches", size.c_searches["0.01"]),
                ("insert", "insertions", size.c_inserts),
            ):
                pair = c_pair(ours, what, boost, what, "found", count)
                goal = "R10" if what == "search" and data.name != rea02.WORLD else None
                yield compare(f"c-{data.name}-{what}", goal, metric, peer, pair, size.rounds)


def c_pair(
    ours: programs.Loop, what: str, peer: programs.Loop, peer_what: str, scale: str, count: int
) -> tuple[Timed, Timed]:
    return (lambda: ours.run(what, scale, count), lambda: peer.run(peer_what, scale, count))


def build_row(
    case: str, peer: str, ours: programs.Loop, theirs: programs.Loop, entries: int
) -> Row:
    """Rectangles per second while the tree was built, which happened once."""
    a, b = entries / ours.build_seconds, entries / theirs.build_seconds
    return {
        "case": case,
        "goal": None,
        "metric": "rectangles",
        "unit": "1/s",
        "ours": spread([a]),
        "peer": peer,
        "peer_value": spread([b]),
        "ratio": spread([a / b]),
        "n": 1,
    }


# ---- Python: R4, R5, R6 ----


def timed(count: int, call: Callable[[], int]) -> Timed:
    def run_once() -> tuple[float, int]:
        start = time.perf_counter()
        hits = call()
        return count / (time.perf_counter() - start), hits

    return run_once


def sum_over(count_hits: Callable[[Any], int], queries: Iterable[Any]) -> Callable[[], int]:
    def call() -> int:
        hits = 0
        for query in queries:
            hits += count_hits(query)
        return hits

    return call


class Ours:
    name = "ours"

    def __init__(self, rects: np.ndarray) -> None:
        self.tree = RTree.bulk(rects)

    def each(self, queries: np.ndarray) -> Callable[[], int]:
        search = self.tree.search
        return sum_over(lambda q: len(search(*q)), queries.tolist())

    def all(self, queries: np.ndarray) -> Callable[[], int]:
        return lambda: len(self.tree.search_many(queries)[1])


class Boostree:
    name = "boostree"

    def __init__(self, rects: np.ndarray) -> None:
        import boostree

        self.tree = boostree.RTree.from_boxes(
            np.ascontiguousarray(rects[:, :2]), np.ascontiguousarray(rects[:, 2:])
        )

    def each(self, queries: np.ndarray) -> Callable[[], int]:
        intersect = self.tree.intersect
        pairs = [(q[None, :2].copy(), q[None, 2:].copy()) for q in queries]
        return sum_over(lambda pair: len(intersect(*pair)[0]), pairs)

    def all(self, queries: np.ndarray) -> Callable[[], int]:
        low, high = np.ascontiguousarray(queries[:, :2]), np.ascontiguousarray(queries[:, 2:])
        return lambda: len(self.tree.intersect(low, high)[0])


class Shapely:
    name = "shapely STRtree"

    def __init__(self, rects: np.ndarray) -> None:
        import shapely

        self.tree = shapely.STRtree(shapely.box(*rects.T))
        self.box = shapely.box

    def each(self, queries: np.ndarray) -> Callable[[], int]:
        query = self.tree.query
        return sum_over(lambda box: len(query(box)), list(self.box(*queries.T)))

    def all(self, queries: np.ndarray) -> Callable[[], int]:
        boxes = self.box(*queries.T)
        return lambda: self.tree.query(boxes).shape[1]


class Libspatialindex:
    name = "rtree (libspatialindex)"

    def __init__(self, rects: np.ndarray) -> None:
        import rtree.index

        low, high = np.ascontiguousarray(rects[:, :2]), np.ascontiguousarray(rects[:, 2:])
        properties = rtree.index.Property(variant=rtree.index.RT_Star)
        self.tree = rtree.index.Index((np.arange(len(rects)), low, high), properties=properties)

    def each(self, queries: np.ndarray) -> Callable[[], int]:
        intersection = self.tree.intersection
        return sum_over(lambda q: len(list(intersection(q))), queries.tolist())

    def all(self, queries: np.ndarray) -> Callable[[], int]:
        low, high = np.ascontiguousarray(queries[:, :2]), np.ascontiguousarray(queries[:, 2:])
        return lambda: int(self.tree.intersection_v(low, high)[1].sum())


PEERS: tuple[tuple[type[Boostree | Shapely | Libspatialindex], float], ...] = (
    (Boostree, 1),
    (Shapely, 0.5),
    (Libspatialindex, 0.2),
)
"""With the share of the queries that each gets: the slow ones need not be waited for."""


def python_search_cases(size: Size) -> Iterator[Row]:
    if not size.wants("R4", "R5", None):
        return
    rects = workload.data(size.entries)
    ours = Ours(rects)
    for make, share in PEERS:
        goals = {"each": "R4", "all": "R5"} if make is Boostree else {"each": None, "all": None}
        if size.wants(*goals.values()):
            yield from searches_against(make(rects), share, goals, ours, size)


def searches_against(
    peer: Boostree | Shapely | Libspatialindex,
    share: float,
    goals: Mapping[str, str | None],
    ours: Ours,
    size: Size,
) -> Iterator[Row]:
    for scale in SCALES:
        count = int(size.python_searches[scale] * share)
        queries = workload.queries(scale, count)
        for kind, goal in goals.items():
            if size.wants(goal):
                pair = (
                    timed(count, getattr(ours, kind)(queries)),
                    timed(count, getattr(peer, kind)(queries)),
                )
                case = f"python-search-{kind}/{scale}"
                yield compare(case, goal, "searches", peer.name, pair, size.rounds)


def python_insert_cases(size: Size) -> Iterator[Row]:
    if not size.wants("R6"):
        return
    rects = workload.data(size.entries // 4)  # libspatialindex needs half a gigabyte for 2 million
    peer = Libspatialindex(rects)
    ours = RTree.bulk(rects, capacity=2 * size.entries)
    for scale in SCALES:
        rows = workload.inserts(scale, size.python_inserts).tolist()
        pair = (
            timed(len(rows), lambda rows=rows: insert_ours(ours, rows)),
            timed(len(rows), lambda rows=rows: insert_theirs(peer.tree, rows)),
        )
        yield compare(f"python-insert/{scale}", "R6", "insertions", peer.name, pair, size.rounds)


def insert_ours(tree: RTree, rows: list[list[float]]) -> int:
    insert = tree.insert
    for number, (xmin, ymin, xmax, ymax) in enumerate(rows):
        insert(xmin, ymin, xmax, ymax, number)
    return len(rows)


def insert_theirs(tree: Any, rows: list[list[float]]) -> int:
    for number, row in enumerate(rows):
        tree.insert(number, row)
    return len(rows)
