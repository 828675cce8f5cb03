"""Clients that search in the server's memory: the same answers in every mode, over every way."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import numpy as np
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import l5
from catfish_app import OffloadingClient, RTree, RTreeClient, serve_tree
from catfish_app._direct import Disturbed
from catfish_app._kernels import ffi, lib
from tests.catfish._reader import STABLE
from tests.catfish._support import WAYS, boxes, meeting, served, sorted_ids

EVERYTHING = (-1.0, -1.0, 3.0, 3.0)
ONE_SIDED = {"shm from unix", "shm from tcp"}


async def other_client(client: RTreeClient, url: str, mode: str) -> OffloadingClient:
    other = await RTreeClient.connect(url, mode=mode)  # type: ignore[arg-type]
    assert isinstance(other, OffloadingClient)
    assert other.connection.transport == client.connection.transport
    return other


@pytest.mark.anyio
@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_all_modes_find_the_same(way: str, python: bool, tmp_path: Path) -> None:
    rects = boxes(2000)
    tree = RTree.bulk(rects, shared=True, capacity=4000)
    async with served(tmp_path, tree, way, python=python) as (server_mode, server):
        url = server.urls[0] + WAYS[way][1]
        async with await other_client(server_mode, url, "client") as client:
            for query in boxes(15, seed=1, edge=0.3).tolist():
                wanted = meeting(rects, query)
                assert sorted_ids(await client.search(query)) == wanted
                assert await client.count(query) == len(wanted)
                ids, distances = await client.nearest(query, 7)
                expected = await server_mode.nearest(query, 7)
                assert ids.tolist() == expected[0].tolist()
                assert distances.tolist() == expected[1].tolist()
            assert len(await client.search(EVERYTHING)) == 2000
            queries = boxes(60, seed=2, edge=0.1)
            offsets, ids = await client.search_many(queries)
            expected = await server_mode.search_many(queries)
            assert offsets.tolist() == expected[0].tolist()
            assert sorted_ids(ids) == sorted_ids(expected[1])
            assert server.requests == 15 + 1  # of the other client: this one asked for nothing
            seen = client.statistics()
            assert (seen.client, seen.server, seen.reason) == (46 + 60, 0, "")
            assert seen.one_sided == (way in ONE_SIDED)
            assert client.last_search is not None and client.last_search.path is l5.Path.CLIENT
            await client.insert((2.0, 2.0, 2.5, 2.5), 77_777)  # the server's work, and seen at once
            assert (await client.search((2.1, 2.1, 2.2, 2.2))).tolist() == [77_777]
            assert (await client.nearest((2.2, 2.2), 1))[0].tolist() == [77_777]


class Alternating:
    """Both paths, in turn; remembers what it was told."""

    def __init__(self) -> None:
        self.paths = [l5.Path.SERVER, l5.Path.CLIENT]
        self.observed: list[tuple[l5.Path, float]] = []

    def choose(self, now: float) -> l5.Path:
        self.paths.reverse()
        return self.paths[0]

    def observe(self, path: l5.Path, latency_s: float, now: float, reads: int = 0) -> None:
        self.observed.append((path, latency_s))

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        assert 0 <= busy_share <= 1 and sequence > 0


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["shm from unix", "tcp"])
async def test_the_policy_decides_and_learns(way: str, tmp_path: Path) -> None:
    rects, policy = boxes(500), Alternating()
    url, suffix, _ = WAYS[way]
    async with serve_tree(RTree.bulk(rects, shared=True), url.format(folder=tmp_path)) as server:
        client = await RTreeClient.connect(server.urls[0] + suffix, mode="adaptive", policy=policy)
        async with client:
            assert isinstance(client, OffloadingClient)
            for row in range(10):
                assert row in (await client.search(rects[row])).tolist()
            seen = client.statistics()
        assert (seen.client, seen.server) == (5, 5)
        assert [path for path, _ in policy.observed] == [l5.Path.CLIENT, l5.Path.SERVER] * 5
        assert all(latency_s > 0 for _, latency_s in policy.observed)


@pytest.mark.anyio
async def test_a_server_that_offers_no_memory(tmp_path: Path) -> None:
    async with served(tmp_path, RTree.bulk(boxes(100)), share=False) as (_, server):
        with pytest.raises(l5.RemoteAccessError, match=r"share=False"):
            await RTreeClient.connect(server.urls[0], mode="client")
        policy = Alternating()
        client = await RTreeClient.connect(server.urls[0], mode="adaptive", policy=policy)
        async with client:
            assert isinstance(client, OffloadingClient)
            for _ in range(4):
                assert len(await client.search(EVERYTHING)) == 100
            seen = client.statistics()
            assert (seen.server, seen.client) == (4, 0)
            assert "offers no tree" in seen.reason
        with pytest.raises(ValueError, match="mode is 'offload'; it can be adaptive, server or"):
            await RTreeClient.connect(server.urls[0], mode="offload")  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["shm from unix", "tcp"])
async def test_memory_that_is_revoked(way: str, tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(300), shared=True)
    async with served(tmp_path, tree, way) as (first, server):
        url = server.urls[0] + WAYS[way][1]
        async with (
            await other_client(first, url, "client") as client,
            await RTreeClient.connect(url, mode="adaptive", policy=l5.AlwaysClient()) as adaptive,
        ):
            assert isinstance(adaptive, OffloadingClient)
            assert len(await client.search(EVERYTHING)) == 300
            assert len(await adaptive.search(EVERYTHING)) == 300
            server.server.revoke("rtree")
            with pytest.raises(l5.RemoteAccessError):
                await client.search(EVERYTHING)
            assert len(await adaptive.search(EVERYTHING)) == 300
            assert adaptive.statistics().reason
            assert adaptive.last_search is not None
            assert adaptive.last_search.path is l5.Path.SERVER


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["shm from unix", "tcp"])
async def test_a_writer_that_stopped_amid_a_change(way: str, tmp_path: Path) -> None:
    """The tree's word that entries move stays odd: the client gives up and asks the server."""
    rects = boxes(300)
    tree = RTree.bulk(rects, shared=True)
    async with served(tmp_path, tree, way) as (first, server):
        async with await other_client(first, server.urls[0] + WAYS[way][1], "client") as client:
            assert len(await client.search(EVERYTHING)) == 300
            assert tree.region is not None
            moves = tree.region.read(64, 8)
            tree.region.write(64, (int.from_bytes(moves, "little") + 1).to_bytes(8, "little"))
            asked = None
            with anyio.move_on_after(60):  # the server's readers take turns with its writers
                direct = client._tree
                assert direct is not None
                with pytest.raises(Disturbed):
                    await direct.search(EVERYTHING)
                asked = client.statistics().retries
            tree.region.write(64, moves)
            assert asked is not None and asked > 0
            assert len(await client.search(EVERYTHING)) == 300


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["shm from unix", "tcp"])
async def test_a_tree_that_makes_no_sense(way: str, tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(300), shared=True)
    async with served(tmp_path, tree, way) as (first, server):
        async with await other_client(first, server.urls[0] + WAYS[way][1], "client") as client:
            assert tree.region is not None
            for root, height in ((2**32 - 2, 2), (0, 200), (3, 9)):
                tree.region.write(72, (root | height << 32).to_bytes(8, "little"))
                with pytest.raises(l5.RemoteProtocolError, match="its tree is damaged"):
                    await client.search(EVERYTHING)
        tree.region.write(0, b"not a tree")
        with pytest.raises(l5.RemoteProtocolError, match="no tree that this client can read"):
            await RTreeClient.connect(server.urls[0] + WAYS[way][1], mode="client")


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["shm from unix", "tcp"])
async def test_what_is_no_query(way: str, tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(30), shared=True)
    async with served(tmp_path, tree, way) as (first, server):
        async with await other_client(first, server.urls[0] + WAYS[way][1], "client") as client:
            with pytest.raises(ValueError, match="not a valid query: xmin 3 is greater than xmax"):
                await client.search((3, 0, 2, 0))
            with pytest.raises(ValueError, match="not a valid rectangle: ymin is nan"):
                await client.nearest((3, float("nan"), 3, 3), 2)
            with pytest.raises(ValueError, match="row 1: not a valid query"):
                await client.search_many([(0, 0, 1, 1), (3, 0, 2, 0)])
            with pytest.raises(ValueError, match="four numbers"):
                await client.search((1, 2, 3))
            with pytest.raises(ValueError, match="four numbers"):
                await client.count(("a", 2, 3, 4))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="k is -1"):
                await client.nearest((0, 0), -1)
            assert await client.count((-np.inf, -np.inf, np.inf, np.inf)) == 30


def changes(tree: RTree) -> Iterator[None]:
    """Insert, move and delete without end, so that leaves split and merge; stop at every tenth."""
    random, number = np.random.default_rng(5), STABLE
    while True:
        rows = boxes(600, seed=int(random.integers(1 << 30))).tolist()
        for i, row in enumerate(rows):
            tree.insert(*row, number + i)
            if i % 10 == 0:
                yield
        for i, row in enumerate(rows):
            moved = rows[(i + 1) % 600]
            assert tree.update(row, number + i, moved)
            assert tree.delete(*moved, number + i)
            if i % 10 == 0:
                yield
        number += 600


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the readers are what is tested
@pytest.mark.parametrize(("way", "searches"), [("shm from unix", 400), ("tcp", 10)])
async def test_processes_search_while_the_tree_changes(
    way: str, searches: int, tmp_path: Path
) -> None:
    """What was there throughout is found by every search, once, by readers in other processes."""
    tree = RTree.bulk(boxes(STABLE), shared=True, capacity=8000)
    url, suffix, _ = WAYS[way]
    async with serve_tree(tree, url.format(folder=tmp_path)) as server:
        command = [sys.executable, "-m", "tests.catfish._reader"]
        command += [server.urls[0] + suffix, str(searches)]
        stop: list[bool] = []
        reports: list[dict[str, int]] = []
        there: list[int] = []

        async def read(process: Process, going: anyio.Event) -> None:
            assert process.stdin and process.stdout
            output = BufferedByteReceiveStream(process.stdout)
            await output.receive_until(b"\n", 100)
            there.append(process.pid)
            while len(there) < 2:
                await anyio.sleep(0.01)
            going.set()
            await process.stdin.send(b"go\n")
            reports.append(json.loads(await output.receive_until(b"\n", 1000)))
            assert await process.wait() == 0

        def write() -> None:
            for _ in changes(tree):
                time.sleep(0.0002)  # the server's event loop needs the GIL, too
                if stop:
                    return

        async def write_in_turn() -> None:
            for _ in changes(tree):
                await anyio.sleep(0.05)  # a walk takes milliseconds here
                if stop:
                    return

        async with (
            await anyio.open_process(command, stderr=None) as first,
            await anyio.open_process(command, stderr=None) as second,
            anyio.create_task_group() as tasks,
        ):
            try:
                async with anyio.create_task_group() as readers:
                    ready = anyio.Event()
                    readers.start_soon(read, first, ready)
                    readers.start_soon(read, second, ready)
                    await ready.wait()
                    if way == "tcp":  # what reads there are, this loop answers
                        tasks.start_soon(write_in_turn)
                    else:
                        tasks.start_soon(anyio.to_thread.run_sync, write)
            finally:
                stop.append(True)
        tree.check()
    assert len(reports) == 2
    assert all(report["client"] > 0 for report in reports), reports


# ---- against the tree, by Hypothesis -----------------------------------------------------------


@attrs.frozen
class Copies:
    """A tree's memory as its walks see it, when nobody writes."""

    memory: memoryview

    def find(self, kind: int, query: list[float], k: int, remote: object) -> tuple[int, list[int]]:
        walk = ffi.new("struct rt_walk **")
        assert lib.rt_walk_create(walk, remote) == 0
        try:
            assert lib.rt_walk_begin(walk[0], kind, ffi.new("double[4]", query), k, 1) == 0
            spans = ffi.new("uint64_t[6]")
            while count := lib.rt_walk_want(walk[0], spans, 3):
                for i in reversed(range(count)):
                    offset, length = spans[2 * i], spans[2 * i + 1]
                    data = bytes(self.memory[offset : offset + length])
                    assert lib.rt_walk_got(walk[0], offset, data, length) == 0
            assert lib.rt_walk_outcome(walk[0]) == 0
            total = lib.rt_walk_total(walk[0])
            ids = lib.rt_walk_ids(walk[0])
            return total, ffi.unpack(ids, total) if total and kind != lib.RT_WALK_COUNT else []
        finally:
            lib.rt_walk_destroy(walk[0])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.sampled_from([0, 1, 21, 22, 400, 1500]),
    seed=st.integers(0, 1000),
    deleted=st.sampled_from([0, 0.5, 1.0]),
    corners=st.lists(st.floats(-1, 2, width=32), min_size=4, max_size=4),
    k=st.integers(0, 30),
    cache=st.sampled_from([0, 3, 500]),
)
def test_walks_agree_with_the_tree(
    count: int, seed: int, deleted: float, corners: list[float], k: int, cache: int
) -> None:
    rows = boxes(count, seed)
    tree = RTree(capacity=2000, shared=True)
    tree.insert_many(rows)
    for row in range(int(count * deleted)):
        assert tree.delete(*rows[row].tolist(), row)
    assert tree.region is not None
    memory = tree.region.view
    made = ffi.new("struct rt_remote **")
    assert lib.rt_remote_open(made, bytes(memory[:128]), 128, len(memory), cache) == 0
    x, y = sorted(corners[:2]), sorted(corners[2:])
    query = [x[0], y[0], x[1], y[1]]
    copies = Copies(memory)
    try:
        for _ in range(2):  # the second time much is remembered
            total, ids = copies.find(lib.RT_WALK_SEARCH, query, 0, made[0])
            assert sorted(ids) == sorted(tree.search(*query)) and total == len(ids)
            assert copies.find(lib.RT_WALK_COUNT, query, 0, made[0])[0] == total
            assert copies.find(lib.RT_WALK_NEAREST, query, k, made[0])[1] == tree.nearest(
                *query, k=k
            )
    finally:
        lib.rt_remote_close(made[0])


@pytest.mark.anyio
async def test_the_policy_hears_of_each_request_also_of_those_that_come_to_nothing(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, RTree.bulk(boxes(300), shared=True)) as (_, server):
        policy = l5.AdaptivePolicy(random=lambda: 0.5)
        async with await RTreeClient.connect(server.urls[0], policy=policy) as client:
            rects: list[Any] = [EVERYTHING] * 70 + [(1.0, 0.0, 0.0, 1.0), (1.0,), "four"]
            for rect in rects:
                for ask in (client.search, client.count, lambda r: client.nearest(r, 2)):
                    try:
                        await ask(rect)
                    except ValueError:
                        assert rect is not EVERYTHING
                assert policy.outstanding == (0, 0)
            for path in range(100):  # the server's, and the client's own
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await client.search(EVERYTHING)
                assert policy.outstanding == (0, 0), path
            await client.search_many(boxes(500))
            assert policy.outstanding == (0, 0)
            assert policy.server_s > 0.0 and policy.client_s > 0.0
