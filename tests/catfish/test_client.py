"""Client and server together: every call, over every transport, answered in C and in Python."""

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import l5
from catfish_app import BusyError, RTree, RTreeClient, TreeFull
from tests.catfish._support import WAYS, boxes, meeting, served, sorted_ids

pytestmark = pytest.mark.anyio
EVERYTHING = (-1.0, -1.0, 3.0, 3.0)


@pytest.fixture(params=["native", "python"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"python": request.param == "python"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_tree_is_filled_searched_and_changed(
    way: str, options: dict[str, Any], tmp_path: Path
) -> None:
    rects = boxes(2000)
    async with served(tmp_path, RTree(capacity=4000), way, **options) as (tree, server):
        assert (server.native is None) == options["python"]
        assert await tree.bounds() is None
        assert sorted_ids(await tree.search(EVERYTHING)) == []
        assert await tree.load(rects)
        for query in boxes(20, seed=1, edge=0.2).tolist():
            wanted = meeting(rects, query)
            assert sorted_ids(await tree.search(query)) == wanted
            assert await tree.count(query) == len(wanted)
        low, high = rects.min(axis=0), rects.max(axis=0)
        assert await tree.bounds() == (low[0], low[1], high[2], high[3])

        await tree.insert((2.0, 2.0, 2.5, 2.5), 2**64 - 1)
        assert (await tree.search((2.2, 2.2, 2.2, 2.2))).tolist() == [2**64 - 1]
        assert await tree.update((2.0, 2.0, 2.5, 2.5), 2**64 - 1, (2.6, 2.6, 2.7, 2.7))
        assert not await tree.update((2.0, 2.0, 2.5, 2.5), 2**64 - 1, (2.6, 2.6, 2.7, 2.7))
        assert await tree.count((2.2, 2.2, 2.2, 2.2)) == 0
        assert await tree.delete((2.6, 2.6, 2.7, 2.7), 2**64 - 1)
        assert not await tree.delete((2.6, 2.6, 2.7, 2.7), 2**64 - 1)

        await tree.insert_many(boxes(100, seed=2), np.arange(5000, 5100))
        assert await tree.count(EVERYTHING) == 2100
        server.tree.check()


async def test_many_searches_in_one_call(options: dict[str, Any], tmp_path: Path) -> None:
    rects, queries = boxes(3000), boxes(5000, seed=1, edge=0.1)
    async with served(tmp_path, RTree.bulk(rects), **options) as (tree, _):
        offsets, ids = await tree.search_many(queries)
        wanted_offsets, _ = RTree.bulk(rects).search_many(queries)
        assert offsets.tolist() == wanted_offsets.tolist()
        for row in range(0, 5000, 97):
            assert sorted_ids(ids[offsets[row] : offsets[row + 1]]) == meeting(rects, queries[row])
        offsets, ids = await tree.search_many(np.empty((0, 4)))
        assert (offsets.tolist(), ids.tolist()) == ([0], [])


async def test_many_searches_whose_answers_are_over_the_limit_are_split(
    options: dict[str, Any], tmp_path: Path
) -> None:
    count = 20_000
    async with served(
        tmp_path, RTree.bulk(boxes(count)), max_message_bytes=160 << 10, **options
    ) as (tree, _):
        offsets, ids = await tree.search_many([EVERYTHING] * 5)
        assert offsets.tolist() == [count * query for query in range(6)]
        assert sorted_ids(ids[count : 2 * count]) == list(range(count))


async def test_an_answer_over_the_limit_is_an_error_and_no_more(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with served(
        tmp_path, RTree.bulk(boxes(20_000)), max_message_bytes=64 << 10, **options
    ) as (tree, _):
        for call in (tree.search, lambda query: tree.search_many([query])):
            with pytest.raises(l5.RequestFailed, match="limit") as raised:
                await call(EVERYTHING)
            assert raised.value.remote_type == "MessageTooLarge"
        assert await tree.count(EVERYTHING) == 20_000


async def test_the_nearest(options: dict[str, Any], tmp_path: Path) -> None:
    points = np.array([[x, 0.0, x, 0.0] for x in (1.0, 2.0, 4.0, 8.0)])
    async with served(tmp_path, RTree.bulk(points, [10, 20, 40, 80]), **options) as (tree, _):
        ids, distances = await tree.nearest((0.0, 0.0), 3)
        assert (ids.tolist(), distances.tolist()) == ([10, 20, 40], [1.0, 2.0, 4.0])
        ids, distances = await tree.nearest((1.0, 3.0, 2.0, 4.0), 100)
        assert ids.tolist() == [10, 20, 40, 80]
        assert distances.tolist() == [3.0, 3.0, 13**0.5, 45**0.5]
        ids, distances = await tree.nearest((0.0, 0.0), 0)
        assert (len(ids), len(distances)) == (0, 0)
        with pytest.raises(ValueError, match="k is -1"):
            await tree.nearest((0.0, 0.0), -1)
        for wrong in (5, (1.0, 2.0, 3.0), "123"):
            with pytest.raises(ValueError, match="a place is a point"):
                await tree.nearest(wrong, 1)  # type: ignore[arg-type]


async def test_what_the_server_says_of_itself(options: dict[str, Any], tmp_path: Path) -> None:
    rects = boxes(3000)
    async with served(tmp_path, RTree.bulk(rects, capacity=9000), **options) as (tree, server):
        await tree.search(EVERYTHING)
        await tree.count(EVERYTHING)
        await tree.count(EVERYTHING)
        stats = await tree.stats()
        assert stats.tree == server.tree.stats()
        assert stats.kernel == server.tree.kernel
        assert stats.workers == (0 if options["python"] else 1)
        assert stats.requests == {"search": 1, "count": 2, "stats": 1}
        assert 0 <= stats.busy_share <= 1 and stats.uptime_s > 0
        summary = (await tree.stats(walk=False)).tree
        assert summary == server.tree.stats(walk=False)
        assert (summary.leaf_nodes, summary.inner_nodes, summary.leaf_fill) == (0, 0, 0)
        for name in ("entries", "height", "capacity_nodes", "free_nodes", "arena_bytes"):
            assert getattr(summary, name) == getattr(stats.tree, name)
        for level in range(stats.tree.height):
            wanted = server.tree.level_rects(level)
            assert np.array_equal(await tree.level_rects(level), wanted)
        for level in (stats.tree.height, 2**32 - 1, 2**32, -1):
            with pytest.raises(IndexError, match="level"):
                await tree.level_rects(level)


async def test_a_long_answer_comes_in_pieces(options: dict[str, Any], tmp_path: Path) -> None:
    count = 100_000
    async with served(tmp_path, RTree.bulk(boxes(count)), **options) as (tree, _):
        sizes, ids = [], []
        async with tree.search_iter(EVERYTHING) as pieces:
            async for piece in pieces:
                sizes.append(len(piece))
                ids += piece.tolist()
        assert len(sizes) >= 4 and min(sizes) > 0
        assert sorted(ids) == list(range(count))
        async with tree.search_iter(EVERYTHING) as pieces:
            async for piece in pieces:
                assert len(piece) > 0
                break  # leaving early leaves the connection sound
        assert await tree.count(EVERYTHING) == count
        async with tree.search_iter((5.0, 5.0, 6.0, 6.0)) as pieces:
            assert [piece async for piece in pieces] == []


async def test_bad_rectangles_name_what_is_wrong(options: dict[str, Any], tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    async with served(tmp_path, RTree(capacity=9000), **options) as (tree, _):
        for call in (tree.search, tree.count):
            with pytest.raises(ValueError, match="not a valid query: ymin is nan"):
                await call((0.0, nan, 1.0, 1.0))
            with pytest.raises(ValueError, match="not a valid query: xmin 2 is greater than xmax"):
                await call((2.0, 0.0, 1.0, 1.0))
            with pytest.raises(ValueError, match="four numbers"):
                await call((1.0, 2.0, 3.0))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="four numbers"):
                await call("1234")  # type: ignore[arg-type]
        assert await tree.count((-inf, -inf, inf, inf)) == 0
        with pytest.raises(ValueError, match="not a valid rectangle: xmax is inf"):
            await tree.insert((0.0, 0.0, inf, 1.0), 1)
        with pytest.raises(ValueError, match="row 1: not a valid rectangle: ymin"):
            await tree.update((0.0, 0.0, 1.0, 1.0), 1, (0.0, 2.0, 1.0, 1.0))
        with pytest.raises(ValueError, match="an id from 0"):
            await tree.insert((0.0, 0.0, 1.0, 1.0), -1)
        with pytest.raises(ValueError, match="row 2: not a valid query"):
            await tree.search_many([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, nan, 1]])
        rows = boxes(9000)
        rows[8500, 0] = 7.0
        for call in (tree.search_many, tree.insert_many, tree.load):
            with pytest.raises(ValueError, match="row 8500: not a valid"):
                await call(rows)
        with pytest.raises(ValueError, match="row 5: not a valid rectangle"):
            await tree.insert_many(np.where(np.arange(24).reshape(6, 4) == 20, nan, 1.0))
        assert await tree.count(EVERYTHING) == 0


async def test_a_full_tree_is_an_error_and_unchanged(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with served(tmp_path, RTree(capacity=10), **options) as (tree, server):
        room = server.tree.stats().capacity_nodes * 21
        with pytest.raises(TreeFull, match=r"row \d+: the tree is full"):
            await tree.insert_many(boxes(room))
        with pytest.raises(TreeFull, match="do not fit"):
            await tree.load(boxes(room + 1))
        assert await tree.count(EVERYTHING) == 0
        with pytest.raises(TreeFull, match="make it with a greater capacity"):
            for id, rect in enumerate(boxes(room).tolist()):
                await tree.insert(rect, id)
        server.tree.check()
        assert await tree.count(EVERYTHING) == len(server.tree)


async def test_loading_reports_progress_and_adds_to_what_is_there(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rects = boxes(20_000)
    seen: list[tuple[int, int]] = []
    async with served(tmp_path, RTree(capacity=60_000), **options) as (tree, server):
        assert await tree.load(rects, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (20_000, 20_000) and len(seen) > 2 and seen == sorted(seen)
        assert server.tree.stats().leaf_fill > 0.95
        assert not await tree.load(boxes(10_000, seed=5), np.arange(20_000, 30_000))
        assert sorted_ids(await tree.search(EVERYTHING)) == list(range(30_000))
        await tree.insert_many(boxes(10_000, seed=6), np.arange(30_000, 40_000))
        assert await tree.count(EVERYTHING) == 40_000
        assert not await tree.load(np.empty((0, 4)))
        server.tree.check()


async def test_one_load_at_a_time(options: dict[str, Any], tmp_path: Path) -> None:
    async with (
        served(tmp_path, RTree(capacity=60_000), **options) as (tree, server),
        await RTreeClient.connect(server.urls[0]) as other,
    ):
        # Another client begins between two parts of the first one's load.
        request, calls = tree._request, 0

        async def interrupted(payload: bytes) -> bytes:
            nonlocal calls
            calls += 1
            if calls == 2:
                with pytest.raises(BusyError, match="another load"):
                    await other.load(boxes(10))
            return await request(payload)

        tree._request = interrupted
        assert await tree.load(boxes(20_000))
        assert calls > 2
        assert not await other.load(boxes(10))


async def test_a_cancelled_load_leaves_nothing_and_lets_others_begin(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with served(tmp_path, RTree(capacity=60_000), **options) as (tree, _):
        with anyio.CancelScope() as scope:
            await tree.load(boxes(50_000), progress=lambda done, total: scope.cancel())
        assert scope.cancelled_caught
        assert await tree.count(EVERYTHING) == 0
        assert await tree.load(boxes(50_000))


async def test_many_tasks_share_a_client(options: dict[str, Any], tmp_path: Path) -> None:
    rects = boxes(2000)
    async with served(tmp_path, RTree.bulk(rects, capacity=4000), **options) as (tree, server):

        async def search(seed: int) -> None:
            for query in boxes(50, seed=seed, edge=0.2).tolist():
                found = await tree.search(query)
                assert [id for id in sorted_ids(found) if id < 2000] == meeting(rects, query)

        async def change(seed: int) -> None:
            for id, rect in enumerate(boxes(50, seed=seed).tolist(), 10_000 * seed):
                await tree.insert(rect, id)
                assert await tree.delete(rect, id)

        async with anyio.create_task_group() as tasks:
            for seed in range(1, 6):
                tasks.start_soon(search, seed)
                tasks.start_soon(change, seed)
        assert await tree.count(EVERYTHING) == 2000
        server.tree.check()


async def test_several_workers(tmp_path: Path) -> None:
    rects = boxes(5000)
    async with served(tmp_path, RTree.bulk(rects), workers=3, mode="event") as (tree, server):
        clients = [await RTreeClient.connect(server.urls[0], mode="server") for _ in range(5)]

        async def search(client: RTreeClient, seed: int) -> None:
            for query in boxes(50, seed=seed, edge=0.2).tolist():
                assert sorted_ids(await client.search(query)) == meeting(rects, query)

        async with anyio.create_task_group() as tasks:
            for seed, client in enumerate(clients):
                tasks.start_soon(search, client, seed)
        stats = await tree.stats()
        assert stats.workers == 3 and stats.requests["search"] == 250
        for client in clients:
            await client.aclose()


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda tree: tree.search(EVERYTHING), b"1234567"),
        (lambda tree: tree.count(EVERYTHING), b""),
        (lambda tree: tree.count(EVERYTHING), b"123456789"),
        (lambda tree: tree.nearest((0, 0), 1), bytes(32)),
        (lambda tree: tree.nearest((0, 0), 1), bytes(8)),
        (lambda tree: tree.search_many([EVERYTHING]), bytes(8)),
        (lambda tree: tree.search_many([EVERYTHING]), bytes(24)),
        (lambda tree: tree.search_many([EVERYTHING]), b"\1" + bytes(23)),
        (lambda tree: tree.search_many([EVERYTHING] * 2), bytes(8) + b"\xff" * 8 + bytes(8)),
        (lambda tree: tree.insert(EVERYTHING, 1), b"x"),
        (lambda tree: tree.insert_many([EVERYTHING]), b"x"),
        (lambda tree: tree.delete(EVERYTHING, 1), b""),
        (lambda tree: tree.update(EVERYTHING, 1, EVERYTHING), b""),
        (lambda tree: tree.bounds(), bytes(31)),
        (lambda tree: tree.stats(), bytes(100)),
        (lambda tree: tree.level_rects(0), bytes(33)),
        (lambda tree: tree.load([EVERYTHING]), b"no token"[:7]),
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error(call: Any, answer: bytes) -> None:
    async with (
        l5.serve(lambda request: answer, "l5+inproc://liar") as server,
        await RTreeClient.connect(server.urls[0]) as tree,
    ):
        with pytest.raises(l5.RemoteProtocolError, match="makes no sense"):
            await call(tree)


@pytest.mark.parametrize("cut", [0, 3])
async def test_pieces_that_end_within_an_id(cut: int, tmp_path: Path) -> None:
    answer = np.arange(5000, dtype="<u8").tobytes()
    answer = answer[: len(answer) - cut]
    url = f"l5+unix://{tmp_path}/odd.sock?transports=unix&segment=4097&credit=8192"
    ids: list[int] = []
    count = 0
    async with (
        l5.serve(lambda request: answer, url),
        await RTreeClient.connect(url) as tree,
        tree.search_iter(EVERYTHING) as pieces,
    ):
        try:
            async for piece in pieces:
                ids += piece.tolist()
                count += 1
        except l5.RemoteProtocolError as error:
            assert cut and "within an id" in str(error)
        else:
            assert not cut
    assert ids == list(range(5000 - bool(cut))) and count > 5


async def test_a_cancelled_search_disturbs_no_other(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rects = boxes(5000)
    async with served(tmp_path, RTree.bulk(rects), **options) as (tree, _):
        for _ in range(20):
            with anyio.move_on_after(0):
                await tree.search_many(boxes(500, edge=0.5))
            assert await tree.count(EVERYTHING) == 5000
