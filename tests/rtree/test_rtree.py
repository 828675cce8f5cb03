"""The Python type: what it accepts, what it says, and threads."""

import errno
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from catfish_app._kernels import ffi, lib
from catfish_app._rtree import RTree, TreeFull
from tests.rtree._model import ListTree

KERNELS = [RTree(capacity=1).kernel, "portable"]
NAN, INF = float("nan"), float("inf")


def boxes(count: int, seed: int = 1, edge: float = 0.02) -> np.ndarray:
    random = np.random.default_rng(seed)
    low = random.random((count, 2))
    return np.hstack([low, low + random.random((count, 2)) * edge])


def model_of(rows: np.ndarray) -> ListTree:
    model = ListTree()
    model.entries = [(tuple(row), i) for i, row in enumerate(rows.tolist())]
    return model


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("packed", [True, False])
def test_every_way_of_asking_gives_the_same_answer(kernel: str, packed: bool) -> None:
    rows = boxes(3000)
    tree = RTree.bulk(rows) if packed else RTree(capacity=3000)
    if not packed:
        tree.insert_many(rows)
    tree.use_kernel(kernel)
    model = model_of(rows)
    queries = np.vstack([boxes(150, 2, 0.2), boxes(50, 3, 0)])
    offsets, ids = tree.search_many(queries)
    out = np.empty(3000, dtype=np.uint64)
    for i, query in enumerate(queries.tolist()):
        wanted = model.search(query)
        assert sorted(tree.search(*query)) == wanted
        assert sorted(ids[offsets[i] : offsets[i + 1]].tolist()) == wanted
        assert tree.search_into(*query, out) == len(wanted)
        assert sorted(out[: len(wanted)].tolist()) == wanted
        assert tree.count(*query) == len(wanted)
        assert tree.nearest(*query, k=7) == model.nearest(query, 7)


def test_kernels_give_ids_in_the_same_order() -> None:
    trees = [RTree.bulk(boxes(5000), capacity=10_000, fill=0.8) for _ in KERNELS]
    for tree, kernel in zip(trees, KERNELS, strict=True):
        tree.use_kernel(kernel)
        tree.insert_many(boxes(5000, 2), np.arange(5000, 10000))
    queries = boxes(500, 3, 0.3)
    first = trees[0].search_many(queries)
    for tree in trees[1:]:
        assert np.array_equal(first[0], tree.search_many(queries)[0])
        assert np.array_equal(first[1], tree.search_many(queries)[1])
        assert np.array_equal(trees[0].level_rects(0), tree.level_rects(0))


def test_unknown_kernel() -> None:
    with pytest.raises(ValueError, match="'sse9' does not exist or does not run"):
        RTree(capacity=1).use_kernel("sse9")


def test_a_search_with_more_results_than_fit_at_first() -> None:
    tree = RTree.bulk(boxes(20_000))
    assert sorted(tree.search(0, 0, 2, 2)) == list(range(20_000))
    offsets, ids = tree.search_many([[0, 0, 2, 2]] * 5)
    assert offsets.tolist() == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    assert sorted(ids[60_000:80_000].tolist()) == list(range(20_000))
    small = bytearray(80)
    assert tree.search_into(0, 0, 2, 2, small) == 20_000
    assert len(set(memoryview(small).cast("Q"))) == 10


def test_an_empty_tree() -> None:
    tree = RTree()
    assert (len(tree), tree.bounds, tree.search(0, 0, 1, 1)) == (0, None, [])
    assert tree.nearest(0, 0, k=3) == []
    assert tree.stats().height == 0
    offsets, ids = tree.search_many(np.empty((0, 4)))
    assert (offsets.tolist(), ids.tolist()) == ([0], [])
    tree.insert_many(np.empty((0, 4)))
    tree.check()
    with pytest.raises(IndexError, match="level is 0; the tree has 0 levels"):
        tree.level_rects(0)


def test_equal_entries_are_kept_apart() -> None:
    tree = RTree(capacity=100)
    for _ in range(60):
        tree.insert(1, 1, 2, 2, 9)
    assert tree.search(1, 1, 1, 1) == [9] * 60
    assert tree.delete(1, 1, 2, 2, 9)
    assert len(tree) == 59
    tree.check()


def test_ids_of_all_64_bits() -> None:
    tree = RTree.bulk([[0, 0, 1, 1], [0, 0, 1, 1]], [2**64 - 1, 2**63])
    assert sorted(tree.search(0, 0, 1, 1)) == [2**63, 2**64 - 1]
    calls: list[Callable[[int], Any]] = [
        lambda id: tree.insert(0, 0, 1, 1, id),
        lambda id: tree.delete(0, 0, 1, 1, id),
        lambda id: tree.update((0, 0, 1, 1), id, (0, 0, 2, 2)),
    ]
    for id in (2**64, -1, -(2**70)):
        for call in calls:
            with pytest.raises(OverflowError, match=rf"the id is {id}; .* 0 to 2\*\*64 - 1"):
                call(id)
    with pytest.raises(TypeError):
        tree.insert(0, 0, 1, 1, "7")  # type: ignore[arg-type]


BAD_ROWS = [
    ((2.0, 0, 1, 1), "xmin 2 is greater than xmax 1"),
    ((0, 2.5, 1, 1), "ymin 2.5 is greater than ymax 1"),
    ((25.4, 0, 24.9, 1), "xmin 25.4 is greater than xmax 24.9"),
    ((0, 1.0000000000000002, 1, 1), "ymin 1.0000000000000002 is greater than ymax 1"),
    ((0, NAN, 1, 1), "ymin is nan, which is not finite"),
    ((0, 0, INF, 1), "xmax is inf, which is not finite"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_ROWS)
def test_a_bad_rectangle_names_its_row_and_changes_nothing(
    bad: tuple[float, ...], reason: str
) -> None:
    rows = boxes(300)
    rows[217] = bad
    with pytest.raises(ValueError, match=f"row 217: not a valid rectangle: {reason}"):
        RTree.bulk(rows)
    tree = RTree(capacity=300)
    with pytest.raises(ValueError, match=f"row 217: not a valid rectangle: {reason}"):
        tree.insert_many(rows)
    with pytest.raises(ValueError, match=f"not a valid rectangle: {reason}"):
        tree.insert(*bad, 1)
    with pytest.raises(ValueError, match=reason):
        tree.delete(*bad, 1)
    with pytest.raises(ValueError, match=reason):
        tree.update((0, 0, 1, 1), 1, bad)
    with pytest.raises(ValueError, match=reason):
        tree.nearest(*bad, k=1)
    assert len(tree) == 0


def test_a_bad_query_names_its_row() -> None:
    tree = RTree.bulk(boxes(300))
    queries = boxes(2000, 2, 0.5)
    queries[1234, 1] = NAN
    with pytest.raises(ValueError, match="row 1234: not a valid query: ymin is nan"):
        tree.search_many(queries)
    with pytest.raises(ValueError, match="not a valid query: xmin 3 is greater than xmax 2"):
        tree.search(3, 0, 2, 0)
    with pytest.raises(ValueError, match="not a valid query"):
        tree.count(3, 0, 2, 0)
    assert tree.count(-INF, -INF, INF, INF) == 300


def test_wrong_arguments_say_what_is_wanted() -> None:
    tree = RTree()
    with pytest.raises(TypeError, match=r"insert\(\) takes 5 arguments \(xmin, .*id\), got 4"):
        tree.insert(1, 2, 3, 4)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"rectangles have shape \(3, 2\); it must be \(n, 4\)"):
        tree.insert_many(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"ids have shape \(2,\); it must be \(3,\)"):
        tree.insert_many(np.zeros((3, 4)), [1, 2])
    with pytest.raises(ValueError, match="row 1: its id is -5"):
        tree.insert_many(np.zeros((3, 4)), [1, -5, 2])
    with pytest.raises(ValueError, match="ids have type float64"):
        tree.insert_many(np.zeros((1, 4)), [1.5])
    with pytest.raises(ValueError, match="capacity is 0"):
        RTree(capacity=0)
    with pytest.raises(ValueError, match=r"fill is 0\.5"):
        RTree.bulk(np.zeros((1, 4)), fill=0.5)
    with pytest.raises(ValueError, match="k is -1"):
        tree.nearest(0, 0, k=-1)
    with pytest.raises(ValueError, match="4 numbers"):
        tree.update((0, 0, 1), 1, (0, 0, 1, 1))
    with pytest.raises(ValueError, match="not aligned"):
        tree.search_into(0, 0, 1, 1, memoryview(bytearray(17))[1:])
    with pytest.raises(BufferError):
        tree.search_into(0, 0, 1, 1, bytes(16))


def test_a_full_tree_says_so_and_stays_as_it_was() -> None:
    tree = RTree(capacity=30)
    rows = boxes(1000)
    before = 0
    with pytest.raises(TreeFull, match=r"the tree is full: its arena has \d+ nodes; make it"):
        for before, row in enumerate(rows.tolist()):
            tree.insert(*row, before)
    assert before >= 30
    tree.check()
    contents = sorted(tree.search(0, 0, 2, 2))
    assert contents == list(range(before))
    with pytest.raises(TreeFull, match=r"row \d+: the tree is full"):
        tree.insert_many(rows + 5)
    tree.check()
    assert sorted(tree.search(0, 0, 9, 9)) == contents
    for i in range(before):  # deleting from a full tree needs no node
        assert tree.delete(*rows[i].tolist(), i)
        if i % 20 == 0:
            tree.check()
    assert len(tree) == 0
    assert tree.stats().free_nodes == tree.stats().capacity_nodes


def test_the_promised_capacity_fits() -> None:
    for capacity in (1, 9, 21, 22, 200, 3000):
        tree = RTree(capacity=capacity)
        rows = boxes(capacity)
        rows = rows[np.argsort(rows[:, 0])]  # sorted order fills nodes worst
        for i, row in enumerate(rows.tolist()):
            tree.insert(*row, i)
        tree.check()


def test_stats_and_level_rects_describe_the_same_tree() -> None:
    rows = boxes(5000)
    tree = RTree.bulk(rows)
    stats = tree.stats()
    levels = [tree.level_rects(level) for level in range(stats.height)]
    assert len(levels[0]) == stats.leaf_nodes
    assert sum(map(len, levels[1:])) == stats.inner_nodes
    assert len(levels[-1]) == 1
    assert stats.entries == len(tree) == 5000
    assert stats.leaf_fill > 0.99
    assert tree.bounds == (*rows[:, :2].min(axis=0), *rows[:, 2:].max(axis=0))
    for level in levels:  # outward rounding: each level covers everything
        assert (level[:, :2].min(axis=0) <= rows[:, :2].min(axis=0)).all()
        assert (level[:, 2:].max(axis=0) >= rows[:, 2:].max(axis=0)).all()


def test_coordinates_far_from_zero_keep_their_precision() -> None:
    rows = boxes(20_000, edge=0.001) + 1.7e9
    tree = RTree(capacity=20_000)
    tree.insert_many(rows)
    widths = tree.level_rects(0)
    widths = widths[:, 2:] - widths[:, :2]
    assert widths.mean() < 0.1  # single precision alone would round all of them to 128
    assert sorted(tree.search(*rows[77].tolist())) == model_of(rows).search(rows[77].tolist())


def test_bulk_loading_a_used_tree_is_refused() -> None:
    tree = RTree.bulk(boxes(10))
    row = np.zeros((1, 4))
    handle = ffi.cast("struct rtree *", tree.address)
    rects = ffi.cast("double *", row.ctypes.data)
    assert lib.rt_bulk_load(handle, rects, ffi.NULL, 1, 1.0, ffi.new("size_t *")) == -errno.EEXIST


@pytest.mark.parametrize("size", [0, 1, 21, 22, 500, 5000])
def test_pieces_of_a_long_result(size: int) -> None:
    tree = RTree.bulk(boxes(size)) if size else RTree()
    handle = ffi.cast("struct rtree *", tree.address)
    query = ffi.new("double[4]", [-1, -1, 3, 3])
    pieces: list[list[int]] = []
    lasts: list[int] = []

    @ffi.callback("int(void *, const uint64_t *, size_t, int)")
    def each(_context: object, ids: object, count: int, last: int) -> int:
        pieces.append(ffi.unpack(ids, count) if count else [])
        lasts.append(last)
        return 0

    assert lib.rt_search_each(handle, query, 100, each, ffi.NULL) == 0
    assert sorted(number for piece in pieces for number in piece) == list(range(size))
    assert all(len(piece) == 100 for piece in pieces[:-1])
    assert lasts == [0] * (len(pieces) - 1) + [1]

    @ffi.callback("int(void *, const uint64_t *, size_t, int)")
    def stop(_context: object, ids: object, count: int, last: int) -> int:
        return -77

    assert lib.rt_search_each(handle, query, 100, stop, ffi.NULL) == -77


def test_threads_share_a_tree() -> None:
    """Writers come and go; what stays is found by every search, exactly once."""
    stable = boxes(2000, 1)
    tree = RTree.bulk(stable, capacity=20_000, fill=0.75)
    failures: list[str] = []
    stop = threading.Event()

    def write(number: int) -> None:
        base = 10_000 * (number + 1)
        for round_ in range(12):
            rows = boxes(400, 10 * number + round_)
            numbers = np.arange(base, base + 400)
            tree.insert_many(rows, numbers)
            for row, i in zip(rows[:200].tolist(), numbers.tolist(), strict=False):
                tree.update(row, i, (0, 0, 1, 1)) or failures.append(f"update {i}")
                tree.delete(0, 0, 1, 1, i) or failures.append(f"delete {i}")
            for row, i in zip(rows[200:].tolist(), numbers[200:].tolist(), strict=True):
                tree.delete(*row, i) or failures.append(f"delete {i}")

    def read(number: int) -> None:
        random = np.random.default_rng(number)
        while not stop.is_set():
            i = int(random.integers(2000))
            found = tree.search(*stable[i].tolist())
            if found.count(i) != 1:
                failures.append(f"{i} found {found.count(i)} times")
            offsets, ids = tree.search_many(stable[:50])
            for k in range(50):
                if np.count_nonzero(ids[offsets[k] : offsets[k + 1]] == k) != 1:
                    failures.append(f"{k} in search_many")

    readers = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []
    tree.check()
    assert sorted(tree.search(-1, -1, 3, 3)) == list(range(2000))
