"""The client without an event loop: the same calls, answers and errors as the async one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import catfish_app
import l5
import l5.blocking
from catfish_app import BusyError, RTree, TreeFull, blocking
from tests.catfish._support import WAYS, boxes, meeting, sorted_ids
from tests.catfish._threads import MAPPED, SOCKETS, served, serving


def always(answer: bytes) -> Callable[[bytes], bytes]:
    """A handler that answers all alike."""

    def handle(request: bytes) -> bytes:
        return answer

    return handle


EVERYTHING = (-1.0, -1.0, 3.0, 3.0)
each_mode = pytest.mark.parametrize("mode", ["server", "client", "adaptive"])


class InTurn:
    """Both paths, in turn; remembers what it was told."""

    def __init__(self) -> None:
        self.paths = [l5.Path.SERVER, l5.Path.CLIENT]
        self.observed: list[tuple[l5.Path, float]] = []
        self.heard: list[float] = []

    def choose(self, now: float) -> l5.Path:
        self.paths.reverse()
        return self.paths[0]

    def observe(
        self, path: l5.Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        self.observed.append((path, latency_s))

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        self.heard.append(busy_share)


# ---- the same as the async client ----------------------------------------------------------------


def members(kind: type) -> dict[str, list[str]]:
    """The public methods and properties of a client, with the names of their arguments."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {
        name: list(inspect.signature(value).parameters)
        if callable(value := inspect.getattr_static(kind, name))
        else []
        for name in names
    }


@pytest.mark.parametrize("name", ["RTreeClient", "OffloadingClient"])
def test_it_has_what_the_async_client_has(name: str) -> None:
    wanted, ours = members(getattr(catfish_app, name)), members(getattr(blocking, name))
    wanted["close"] = wanted.pop("aclose")
    assert sorted(ours) == sorted(wanted)
    without = {"close", "connect", "policy", "last_search", "statistics"}
    for method, arguments in wanted.items():
        waits = [] if method in without else ["timeout"]
        assert ours[method] == arguments + waits, method


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("way", [*MAPPED, *SOCKETS])
def test_a_tree_is_filled_searched_and_changed(way: str, python: bool, tmp_path: Path) -> None:
    rects = boxes(2000)
    with served(tmp_path, RTree(capacity=30_000), way, python=python) as (tree, loop):
        assert tree.bounds() is None
        sent: list[tuple[int, int]] = []
        assert tree.load(rects, progress=lambda done, total: sent.append((done, total)))
        assert sent[-1] == (2000, 2000)
        for query in boxes(20, seed=1, edge=0.2).tolist():
            wanted = meeting(rects, query)
            assert sorted_ids(tree.search(query)) == wanted
            assert tree.count(query) == len(wanted)
        low, high = rects.min(axis=0), rects.max(axis=0)
        assert tree.bounds() == (low[0], low[1], high[2], high[3])
        tree.insert((2.0, 2.0, 2.5, 2.5), 2**64 - 1)
        assert tree.search((2.2, 2.2, 2.2, 2.2)).tolist() == [2**64 - 1]
        assert tree.update((2.0, 2.0, 2.5, 2.5), 2**64 - 1, (2.6, 2.6, 2.7, 2.7))
        assert not tree.update((2.0, 2.0, 2.5, 2.5), 2**64 - 1, (2.6, 2.6, 2.7, 2.7))
        assert tree.delete((2.6, 2.6, 2.7, 2.7), 2**64 - 1)
        assert not tree.delete((2.6, 2.6, 2.7, 2.7), 2**64 - 1)
        tree.insert_many(boxes(100, seed=2), np.arange(5000, 5100))
        assert tree.count(EVERYTHING) == 2100
        tree.insert_many(boxes(9000, seed=3), np.arange(10_000, 19_000))  # so many are a load
        assert tree.count(EVERYTHING) == 11_100
        stats = tree.stats()
        assert stats.tree == loop.server.tree.stats()
        assert stats.requests["load_end"] == 2
        assert tree.stats(walk=False).tree == loop.server.tree.stats(walk=False)
        for level in range(stats.tree.height):
            assert np.array_equal(tree.level_rects(level), loop.server.tree.level_rects(level))
        loop.server.tree.check()


@each_mode
def test_searches_find_what_the_async_client_finds(mode: str, tmp_path: Path) -> None:
    rects = boxes(3000)
    with (
        served(tmp_path, RTree.bulk(rects, shared=True), mode=mode) as (tree, loop),
        loop.asking(mode) as asked,
    ):

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(
            corners=st.lists(st.floats(-0.5, 1.5), min_size=4, max_size=4),
            k=st.integers(0, 50),
            seed=st.integers(0, 1000),
            count=st.integers(0, 30),
        )
        def agree(corners: list[float], k: int, seed: int, count: int) -> None:
            x, y = sorted(corners[:2]), sorted(corners[2:])
            query = (x[0], y[0], x[1], y[1])
            assert sorted_ids(tree.search(query)) == meeting(rects, query)
            assert tree.count(query) == len(meeting(rects, query))
            for where in (query, query[:2]):
                ids, distances = tree.nearest(where, k)
                expected = asked("nearest", where, k)
                assert ids.tolist() == expected[0].tolist()
                assert distances.tolist() == expected[1].tolist()
                assert (ids.dtype, distances.dtype) == (np.uint64, np.float64)
            offsets, ids = tree.search_many(boxes(count, seed, 0.2))
            expected = asked("search_many", boxes(count, seed, 0.2))
            assert offsets.tolist() == expected[0].tolist()
            for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                assert sorted_ids(ids[first:end]) == sorted_ids(expected[1][first:end])

        agree()
        if mode != "server":
            assert isinstance(tree, blocking.OffloadingClient)
            seen = tree.statistics()
            assert seen.client > 0 and (mode == "adaptive" or seen.server == 0)
            assert seen.one_sided and not seen.reason


@each_mode
def test_batches_of_any_size(mode: str, tmp_path: Path) -> None:
    rects, queries = boxes(2000), boxes(9000, seed=1, edge=0.02)
    with served(tmp_path, RTree.bulk(rects, shared=True), mode=mode) as (tree, _):
        offsets, ids = tree.search_many(queries)
        wanted, _ = RTree.bulk(rects).search_many(queries)
        assert offsets.tolist() == wanted.tolist()
        for row in range(0, 9000, 97):
            assert sorted_ids(ids[offsets[row] : offsets[row + 1]]) == meeting(rects, queries[row])
        offsets, ids = tree.search_many(np.empty((0, 4)))
        assert (offsets.tolist(), ids.tolist()) == ([0], [])
        assert (offsets.dtype, ids.dtype) == (np.uint64, np.uint64)
        bad = queries.copy()
        bad[8500] = (2.0, 0.0, 1.0, 1.0)
        with pytest.raises(ValueError, match="row 8500: not a valid query: xmin 2 is greater"):
            tree.search_many(bad)


def test_batches_whose_answers_are_over_the_limit_are_split(tmp_path: Path) -> None:
    count = 20_000
    with served(tmp_path, RTree.bulk(boxes(count)), max_message_bytes=160 << 10) as (tree, _):
        offsets, ids = tree.search_many([EVERYTHING] * 5)
        assert offsets.tolist() == [count * query for query in range(6)]
        assert sorted_ids(ids[count : 2 * count]) == list(range(count))


def test_a_long_answer_comes_in_pieces(tmp_path: Path) -> None:
    count = 100_000
    with served(tmp_path, RTree.bulk(boxes(count))) as (tree, _):
        with tree.search_iter(EVERYTHING) as pieces:
            parts = list(pieces)
        assert len(parts) >= 4 and sorted_ids(np.concatenate(parts)) == list(range(count))
        with tree.search_iter(EVERYTHING) as pieces:
            assert len(next(pieces)) > 0  # leaving early leaves the connection sound
        assert tree.count(EVERYTHING) == count


@pytest.mark.parametrize("cut", [0, 3])
def test_pieces_that_end_within_an_id(cut: int, tmp_path: Path) -> None:
    answer = np.arange(5000, dtype="<u8").tobytes()
    answer = answer[: len(answer) - cut]
    url = f"l5+unix://{tmp_path}/odd.sock?transports=unix&segment=4097&credit=8192"
    ids: list[int] = []
    with l5.blocking.serve(always(answer), url), blocking.connect(url) as tree:
        with tree.search_iter(EVERYTHING) as pieces:
            try:
                for piece in pieces:
                    ids += piece.tolist()
            except l5.RemoteProtocolError as error:
                assert cut and "within an id" in str(error)
            else:
                assert not cut
    assert ids == list(range(5000 - bool(cut)))


# ---- errors --------------------------------------------------------------------------------------

nan, inf = float("nan"), float("inf")
WRONG: list[tuple[str, tuple[Any, ...]]] = [
    *((call, ((0.0, nan, 1.0, 1.0),)) for call in ("search", "count", "nearest")),
    *((call, ((2.0, 0.0, 1.0, 1.0),)) for call in ("search", "count", "nearest")),
    *((call, (bad,)) for call in ("search", "count") for bad in ((1.0, 2.0, 3.0), "1234", 5)),
    ("nearest", ((0, 0), -1)),
    ("nearest", ((0, 0), 2**32)),
    *(("nearest", (bad, 1)) for bad in ((1.0, 2.0, 3.0), "12", 5, None)),
    ("search_many", ([[0, 0, 1, 1], [0, 0, nan, 1]],)),
    ("search_many", ([[0, 0, 1]],)),
    ("insert", ((0.0, 0.0, inf, 1.0), 1)),
    ("insert", ((0.0, 0.0, 1.0, 1.0), -1)),
    ("insert", ((0.0, 0.0, 1.0), 1)),
    ("insert_many", (np.full((6, 4), nan),)),
    ("insert_many", (np.zeros((3, 4)), [1, 2])),
    ("insert_many", (np.zeros((70_000, 4)),)),
    ("delete", ((0.0, 0.0, 1.0, 1.0), "one")),
    ("update", ((0.0, 0.0, 1.0, 1.0), 1, (0.0, 2.0, 1.0, 1.0))),
    ("load", (np.zeros((70_000, 4)),)),
    ("level_rects", (-1,)),
    ("level_rects", (77,)),
]


@each_mode
def test_errors_are_those_of_the_async_client(mode: str, tmp_path: Path) -> None:
    with (
        served(tmp_path, RTree(capacity=100, shared=True), mode=mode) as (tree, loop),
        loop.asking(mode) as asked,
    ):
        for name, args in WRONG:
            with pytest.raises(Exception) as raised:
                getattr(tree, name)(*args)
            with pytest.raises(type(raised.value)) as expected:
                asked(name, *args)
            assert str(raised.value) == str(expected.value) != "", (name, args)
            assert not isinstance(raised.value, l5.L5Error), (name, args)
        assert tree.count(EVERYTHING) == 0


LIES: list[tuple[Callable[[Any], Any], bytes]] = [
    (lambda tree: tree.search(EVERYTHING), b"1234567"),
    (lambda tree: tree.count(EVERYTHING), b"123456789"),
    (lambda tree: tree.nearest((0, 0), 1), bytes(32)),
    (lambda tree: tree.search_many([EVERYTHING]), b"\1" + bytes(23)),
    (lambda tree: tree.insert(EVERYTHING, 1), b"x"),
    (lambda tree: tree.insert_many([EVERYTHING]), b"x"),
    (lambda tree: tree.delete(EVERYTHING, 1), b""),
    (lambda tree: tree.update(EVERYTHING, 1, EVERYTHING), b""),
    (lambda tree: tree.bounds(), bytes(31)),
    (lambda tree: tree.stats(), bytes(100)),
    (lambda tree: tree.level_rects(0), bytes(33)),
    (lambda tree: tree.load([EVERYTHING]), bytes(7)),
    (lambda tree: tree.load([EVERYTHING]), bytes(8)),
]


@pytest.mark.parametrize(("call", "answer"), LIES)
def test_an_answer_that_makes_no_sense_is_an_error(
    call: Callable[[Any], Any], answer: bytes, tmp_path: Path
) -> None:
    url = f"l5+unix://{tmp_path}/liar.sock"
    with l5.blocking.serve(always(answer), url), blocking.connect(url) as tree:
        with pytest.raises(l5.RemoteProtocolError, match="makes no sense"):
            call(tree)


def test_a_full_tree_and_a_second_load(tmp_path: Path) -> None:
    with served(tmp_path, RTree(capacity=10)) as (tree, loop):
        room = loop.server.tree.stats().capacity_nodes * 21
        with pytest.raises(TreeFull, match=r"row \d+: the tree is full"):
            tree.insert_many(boxes(room))
        with pytest.raises(TreeFull, match="do not fit"):
            tree.load(boxes(room + 1))

    def interrupted(done: int, total: int) -> None:
        with pytest.raises(BusyError, match="another load"):
            tree.load(boxes(10))
        raise KeyboardInterrupt

    with served(tmp_path, RTree(capacity=60_000)) as (tree, _):
        with pytest.raises(KeyboardInterrupt):
            tree.load(boxes(20_000), progress=interrupted)
        assert tree.count(EVERYTHING) == 0
        assert tree.load(boxes(20_000))  # at once: the server has been told


def test_a_mode_that_is_none() -> None:
    with pytest.raises(ValueError, match="mode is 'offload'; it can be adaptive, server or client"):
        blocking.connect("l5+unix:///run/none.sock", mode="offload")  # type: ignore[arg-type]


# ---- who searches --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", MAPPED)
def test_what_is_inserted_and_deleted_is_seen_by_direct_readers(way: str, tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(500), shared=True, capacity=4000)
    with served(tmp_path, tree, way, "client") as (direct, loop):
        assert isinstance(direct, blocking.OffloadingClient)
        with blocking.connect(loop.url, mode="server") as other:
            other.insert((2.0, 2.0, 2.5, 2.5), 77_777)
            assert direct.search((2.1, 2.1, 2.2, 2.2)).tolist() == [77_777]
            assert direct.nearest((2.2, 2.2), 1)[0].tolist() == [77_777]
            direct.insert((2.0, 2.0, 2.5, 2.5), 77_778)
            assert direct.count((2.1, 2.1, 2.2, 2.2)) == 2
            assert other.delete((2.0, 2.0, 2.5, 2.5), 77_777)
            assert direct.search((2.1, 2.1, 2.2, 2.2)).tolist() == [77_778]
            assert direct.search_many([(2.1, 2.1, 2.2, 2.2)])[1].tolist() == [77_778]
        assert loop.server.requests == 3  # all of them changes
        seen = direct.statistics()
        assert (seen.client, seen.server) == (5, 0)
        assert direct.last_search is not None and direct.last_search.path is l5.Path.CLIENT


def test_the_policy_decides_and_learns(tmp_path: Path) -> None:
    rects, policy = boxes(500), InTurn()
    with serving(tmp_path, RTree.bulk(rects, shared=True)) as loop:
        with blocking.connect(loop.url, policy=policy) as client:
            assert isinstance(client, blocking.OffloadingClient) and client.policy is policy
            for row in range(10):
                assert row in client.search(rects[row]).tolist()
            seen = client.statistics()
            assert (seen.client, seen.server) == (5, 5)
            assert [path for path, _ in policy.observed] == [l5.Path.CLIENT, l5.Path.SERVER] * 5
            assert all(0 < latency_s < inf for _, latency_s in policy.observed)
            while not policy.heard:
                client.search(EVERYTHING)
            assert 0 <= policy.heard[0] <= 1
            before = len(policy.observed)
            client.search_many(boxes(9000))  # three requests, or parts of them
            assert len(policy.observed) == before + 3
            with pytest.raises(ValueError, match="four numbers"):
                client.count((1.0,))
            assert policy.observed[-1][1] == inf


def test_an_adaptive_client_tells_its_policy_of_each_request(tmp_path: Path) -> None:
    with serving(tmp_path, RTree.bulk(boxes(300), shared=True)) as loop:
        policy = l5.AdaptivePolicy(random=lambda: 0.5)
        with blocking.connect(loop.url, policy=policy) as client:
            for rect in [EVERYTHING] * 70 + [(1.0, 0.0, 0.0, 1.0), (1.0,), "four"]:
                for ask in (client.search, client.count, client.nearest):
                    try:
                        ask(rect)  # type: ignore[arg-type]
                    except ValueError:
                        assert rect is not EVERYTHING
                assert policy.outstanding == (0, 0)
            client.search_many(boxes(5000))
            assert policy.outstanding == (0, 0)
            assert policy.server_s > 0.0 and policy.client_s > 0.0
            assert isinstance(client, blocking.OffloadingClient)
            assert client.statistics().client > 0 < client.statistics().server


@pytest.mark.parametrize("way", SOCKETS)
def test_memory_that_is_not_mapped(way: str, tmp_path: Path) -> None:
    with serving(tmp_path, RTree.bulk(boxes(300), shared=True), way) as loop:
        transport = WAYS[way][2]
        with pytest.raises(l5.RemoteAccessError, match=f"over {transport}.*not mapped.*server"):
            blocking.connect(loop.url, mode="client")
        for policy in (None, l5.AlwaysClient()):
            with blocking.connect(loop.url, policy=policy) as client:
                assert isinstance(client, blocking.OffloadingClient)
                for _ in range(70):
                    assert len(client.search(EVERYTHING)) == 300
                seen = client.statistics()
                assert (seen.server, seen.client) == (70, 0)
                assert ("not mapped" if policy else "may as well search") in seen.reason


def test_a_server_that_offers_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path, RTree.bulk(boxes(100)), share=False) as loop:
        with pytest.raises(l5.RemoteAccessError, match=r"offers no tree.*share=False"):
            blocking.connect(loop.url, mode="client")
        with blocking.connect(loop.url, policy=InTurn()) as client:
            assert isinstance(client, blocking.OffloadingClient)
            for _ in range(4):
                assert len(client.search(EVERYTHING)) == 100
            seen = client.statistics()
            assert (seen.server, seen.client) == (4, 0)
            assert "offers no tree" in seen.reason


def test_memory_that_is_revoked(tmp_path: Path) -> None:
    with served(tmp_path, RTree.bulk(boxes(300), shared=True), mode="client") as (direct, loop):
        with blocking.connect(loop.url, policy=l5.AlwaysClient()) as adaptive:
            assert isinstance(adaptive, blocking.OffloadingClient)
            assert len(direct.search(EVERYTHING)) == len(adaptive.search(EVERYTHING)) == 300
            assert adaptive.last_search is not None
            assert adaptive.last_search.path is l5.Path.CLIENT
            loop.portal.call(loop.server.server.revoke, "rtree")
            for name, asked in (("search", EVERYTHING), ("search_many", [EVERYTHING])):
                with pytest.raises(l5.RemoteAccessError):
                    getattr(direct, name)(asked)
            assert len(adaptive.search(EVERYTHING)) == 300
            assert adaptive.statistics().reason
            assert adaptive.last_search.path is l5.Path.SERVER


def test_a_search_that_writers_disturb_is_the_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from catfish_app._mapped import Disturbed, MappedSearches

    def disturbed(*_: object) -> None:
        raise Disturbed

    with served(tmp_path, RTree.bulk(boxes(300), shared=True), mode="client") as (tree, _):
        assert isinstance(tree, blocking.OffloadingClient)
        for name in ("search_now", "count_now", "search_many_now"):
            monkeypatch.setattr(MappedSearches, name, disturbed)
        assert len(tree.search(EVERYTHING)) == tree.count(EVERYTHING) == 300
        assert len(tree.search_many([EVERYTHING] * 3)[1]) == 900
        assert tree.last_search is not None and tree.last_search.disturbed
        seen = tree.statistics()
        assert (seen.disturbed, seen.server, seen.client) == (5, 5, 0)


def test_a_tree_that_makes_no_sense(tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(300), shared=True)
    with served(tmp_path, tree, mode="client") as (direct, loop):
        assert tree.region is not None
        for root, height in ((2**32 - 2, 2), (0, 200), (3, 9)):
            tree.region.write(72, (root | height << 32).to_bytes(8, "little"))
            with pytest.raises(l5.RemoteProtocolError, match="its tree is damaged"):
                direct.search(EVERYTHING)
        tree.region.write(0, b"not a tree")
        with pytest.raises(l5.RemoteProtocolError, match="no tree that this client can read"):
            blocking.connect(loop.url, mode="client")
