"""Trees are in memory that clients can read, unless it is not to be had or not wanted."""

import errno
import mmap
import os
import threading
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

import l5
from catfish_app import OffloadingClient, RTree, RTreeClient, serve_tree
from tests.catfish._support import WAYS, boxes, meeting, sorted_ids

EVERYTHING = (-1.0, -1.0, 3.0, 3.0)


def test_a_tree_moves_while_it_is_searched_and_changed() -> None:
    rects = boxes(20_000)
    tree = RTree.bulk(rects, capacity=60_000)
    window = (0.2, 0.2, 0.3, 0.3)
    wanted = meeting(rects, window)
    stop = threading.Event()
    wrong: list[object] = []
    searches = inserted = 0

    def search() -> None:
        nonlocal searches
        while not stop.is_set():
            offsets, ids = tree.search_many([window] * 50)
            for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                if sorted_ids(ids[first:last]) != wanted:
                    wrong.append(ids[first:last])
            searches += 1

    def insert() -> None:
        nonlocal inserted
        while not stop.is_set() and inserted < 30_000:
            tree.insert_many(boxes(100, seed=inserted) + 1.5, np.arange(100) + 20_000 + inserted)
            inserted += 100

    threads = [threading.Thread(target=work) for work in (search, search, insert)]
    for thread in threads:
        thread.start()
    while searches < 5:
        pass
    tree.share()
    region, after = tree.region, searches
    while searches < after + 5:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert region is not None
    tree.check()
    assert len(tree) == 20_000 + inserted
    tree.share()  # once is enough
    assert tree.region is region
    with pytest.raises(FileExistsError):
        tree.move_into(region)
    assert region.size_bytes == tree.stats(walk=False).arena_bytes


def test_what_a_tree_writes_is_in_the_region() -> None:
    tree = RTree(100)
    tree.insert(1.0, 2.0, 3.0, 4.0, 5)
    tree.share()
    assert tree.region is not None
    first = bytes(tree.region.view)
    tree.insert(5.0, 6.0, 7.0, 8.0, 9)
    assert bytes(tree.region.view) != first
    assert np.float64(8.0).tobytes() in bytes(tree.region.view)
    assert sorted(tree.search(*EVERYTHING[:2], 9.0, 9.0)) == [5, 9]


def test_two_threads_share_a_tree_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find it in its region afterwards, also who was slower."""
    create, made = l5.Region.create, list[int]()
    first_is_here, go_on = threading.Event(), threading.Event()

    def slowly(size_bytes: int) -> l5.Region:
        made.append(size_bytes)
        first_is_here.set()
        assert go_on.wait(60)
        return create(size_bytes)

    monkeypatch.setattr(l5.Region, "create", slowly)
    tree = RTree.bulk(boxes(300))
    found: list[l5.Region | None] = []

    def share() -> None:
        tree.share()
        found.append(tree.region)

    threads = [threading.Thread(target=share) for _ in range(2)]
    threads[0].start()
    assert first_is_here.wait(60)
    threads[1].start()
    threads[1].join(0.05)  # it would make another region meanwhile
    assert len(made) == 1
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [tree.region] * 2 and tree.region is not None
    tree.check()


def test_a_region_that_is_too_small() -> None:
    tree = RTree.bulk(boxes(1000))
    with l5.Region.create(4096) as region, pytest.raises(OSError) as raised:
        tree.move_into(region)
    assert raised.value.errno == errno.EINVAL
    assert tree.region is None
    tree.check()


def make_busy(policy: l5.OffloadPolicy) -> None:
    """Tell a policy many times that the server is busy: nothing goes there for the time being."""
    later = perf_counter() + 1000.0  # and no silence is noticed until then
    for number in range(30):
        policy.heartbeat(1.0, 1_000_000 + number, later)


@pytest.fixture
def evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take chance out of the policies of clients that have their own."""

    def half(_: object) -> float:
        return 0.5

    monkeypatch.setattr("l5._offload_adaptive._random.Random.random", half)


@pytest.mark.anyio
@pytest.mark.usefixtures("evenly")
@pytest.mark.parametrize("way", WAYS)
async def test_clients_adapt_by_themselves(way: str, tmp_path: Path) -> None:
    """A client asks a server that has time; from one that has none it reads, where that helps."""
    url, suffix, transport = WAYS[way]
    async with serve_tree(RTree.bulk(boxes(300)), url.format(folder=tmp_path)) as server:
        assert server.not_shared == ""
        async with await RTreeClient.connect(server.urls[0] + suffix) as client:
            assert isinstance(client, OffloadingClient)
            assert client.connection.transport == transport
            assert client.mode == "adaptive"
            policy = client.policy
            assert isinstance(policy, l5.AdaptivePolicy)
            assert len(await client.search(EVERYTHING)) == 300
            assert (client.statistics().server, client.statistics().one_sided) == (1, None)
            make_busy(policy)
            for _ in range(3):
                assert len(await client.search(EVERYTHING)) == 300
            assert await client.count(EVERYTHING) == 300
            assert len((await client.nearest((0.5, 0.5), 3))[0]) == 3
            seen = client.statistics()
        if transport == "shm":
            assert (seen.server, seen.client, seen.reason) == (1, 5, "")
        else:
            assert (seen.server, seen.client) == (6, 0)
            assert f"over {transport} the server's memory is read by the server" in seen.reason
        assert server.requests == seen.server


@pytest.mark.anyio
@pytest.mark.usefixtures("evenly")
async def test_a_transport_that_turns_out_to_ask_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not known here: the memory is opened, looked at, and let go."""
    monkeypatch.setattr("catfish_app._ways._ASKED", frozenset[str]())
    async with (
        serve_tree(RTree.bulk(boxes(300)), "l5+tcp://127.0.0.1:0") as server,
        await RTreeClient.connect(server.urls[0]) as client,
    ):
        assert isinstance(client, OffloadingClient)
        assert isinstance(client.policy, l5.AdaptivePolicy)
        make_busy(client.policy)
        for _ in range(2):
            assert len(await client.search(EVERYTHING)) == 300
        seen = client.statistics()
        assert (seen.server, seen.client, seen.one_sided) == (2, 0, None)
        assert "over tcp" in seen.reason


@pytest.mark.anyio
@pytest.mark.usefixtures("evenly")
async def test_memory_that_cannot_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(size_bytes: int, **_rights: bool) -> l5.Region:
        raise OSError(errno.ENOMEM, f"no {size_bytes} bytes of shared memory")

    monkeypatch.setattr(l5.Region, "create", none)
    tree = RTree.bulk(boxes(300))
    async with serve_tree(tree, f"l5+unix://{tmp_path}/tree.sock") as server:
        assert "bytes of shared memory" in server.not_shared
        async with await RTreeClient.connect(server.urls[0]) as client:
            assert isinstance(client, OffloadingClient)
            assert isinstance(client.policy, l5.AdaptivePolicy)
            make_busy(client.policy)
            assert len(await client.search(EVERYTHING)) == 300
            assert "offers no tree" in client.statistics().reason
    assert tree.region is None
    tree.check()


@pytest.mark.anyio
async def test_a_server_that_keeps_its_tree(tmp_path: Path) -> None:
    tree = RTree.bulk(boxes(300), shared=True)
    url = f"l5+unix://{tmp_path}/tree.sock"
    async with serve_tree(tree, url, share=False) as server:
        assert "share=False" in server.not_shared
        with pytest.raises(l5.RemoteAccessError, match=r"--no-share"):
            await RTreeClient.connect(server.urls[0], mode="client")
    async with serve_tree(tree, url) as server:  # the same tree again, and to all
        async with await RTreeClient.connect(server.urls[0], mode="client") as client:
            assert len(await client.search(EVERYTHING)) == 300


@pytest.mark.anyio
async def test_a_client_cannot_change_the_tree(tmp_path: Path) -> None:
    """With the file in its hands, as after a look into its own /proc: nothing maps it writable."""
    tree = RTree.bulk(boxes(300))
    async with (
        serve_tree(tree, f"l5+unix://{tmp_path}/tree.sock") as server,
        await RTreeClient.connect(server.urls[0], mode="client") as client,
    ):
        assert len(await client.search(EVERYTHING)) == 300
        assert tree.region is not None
        region = await client.connection.open_region("rtree")
        with pytest.raises(l5.RemoteAccessError, match="does not grant writing"):
            await region.write(0, b"12345678")
        assert region.mapping is not None and region.mapping.readonly
        size_bytes, descriptor = tree.region.size_bytes, tree.region.fileno()
        for access in (mmap.ACCESS_WRITE, mmap.ACCESS_DEFAULT):
            with pytest.raises(PermissionError):
                mmap.mmap(descriptor, size_bytes, access=access)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"12345678", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        await client.insert((2.0, 2.0, 2.5, 2.5), 7)  # the server writes to the same pages
        assert (await client.search((2.1, 2.1, 2.2, 2.2))).tolist() == [7]
