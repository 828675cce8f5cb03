"""The R*-tree for Python: rectangles in, ids out.

Calls for one rectangle are C methods that keep the GIL; calls for many take NumPy arrays and
release it. A tree may be used by any number of threads at once; `native/rtree.h` states what a
reader sees of concurrent writes.
"""

import errno
import os
import threading
from typing import Any, Self, cast, overload

import attrs
import numpy as np
import numpy.typing as npt

import l5
from catfish_app import _snapshot
from catfish_app._kernels import Tree, TreeFull, ffi, lib

__all__ = ["RTree", "TreeFull", "TreeStats"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.uint64]

_sharing = threading.Lock()
"""Trees move one at a time: who finds that another thread moves one has to wait for its region."""


@attrs.frozen
class TreeStats:
    """Shape of a tree: sizes in nodes, fill as the mean share of used entries (0 to 1)."""

    entries: int
    height: int
    leaf_nodes: int
    inner_nodes: int
    capacity_nodes: int
    free_nodes: int
    arena_bytes: int
    leaf_fill: float
    inner_fill: float


class RTree(Tree):
    """An R*-tree of 2-D rectangles (closed, doubles) with 64-bit unsigned ids.

    `capacity` rectangles always fit; memory is committed as it is used. A rectangle must be finite
    with min <= max, or ValueError tells what is wrong, and in which row. When the tree is full,
    inserting raises `TreeFull` and changes nothing. The same rectangle and id may be in it twice.

    With `shared=True` the tree is in memory that other processes can read (`region`), all of it
    committed at once, where `share` else puts it when it is served; `OSError` when there is not so
    much.
    """

    __slots__ = ()

    def __new__(cls, capacity: int = 1_000_000, *, shared: bool = False) -> Self:
        """Make an empty tree."""
        if not shared or capacity < 1:
            return super().__new__(cls, capacity)
        size_bytes = lib.rt_arena_bytes(lib.rt_nodes_for(capacity))
        return super().__new__(cls, capacity, l5.Region.create(size_bytes))

    @classmethod
    def bulk(
        cls,
        rects: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        capacity: int | None = None,
        fill: float = 1.0,
        shared: bool = False,
    ) -> Self:
        """Build a packed tree of n x 4 rectangles; ids are the row numbers unless given.

        `fill` (0.75 to 1) is the share of each node that is used: 1 is best for searching, less
        leaves room for later insertions. `capacity` is raised to the number of rectangles.
        """
        if not 0.75 <= fill <= 1:
            raise ValueError(f"fill is {fill}; it must be from 0.75 to 1")
        rows = _rects(rects)
        numbers = _ids(ids, len(rows))
        tree = cls(capacity=max(capacity or 1, len(rows), 1), shared=shared)
        bad_row = ffi.new("size_t *")
        error = lib.rt_bulk_load(
            tree._handle, _doubles(rows), _numbers(numbers), len(rows), fill, bad_row
        )
        _raise_for_rows(error, tree, rows, bad_row[0])
        return tree

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        shared: bool = False,
    ) -> Self:
        """Read a tree that `save` wrote; it has room for as many rectangles as that one had.

        `capacity` makes that more. Every byte is checked: `SnapshotError` (or an OSError) says what
        is wrong with the file, which may come from anywhere; so room out of proportion to its size
        is made only if `capacity` asks for it.
        """
        with _snapshot.Reader(path) as reader:
            tree = cls(capacity=reader.room(capacity), shared=shared)
            reader.read_into(tree._handle)
        return tree

    def share(self) -> None:
        """Move the tree into memory that other processes can read, if it is not there already.

        All that `capacity` needs is committed then, in huge pages where the kernel has some. The
        tree may be used meanwhile. Raises OSError, and leaves the tree as it is, when there is not
        so much memory or the system has none that can be shared.
        """
        with _sharing:
            if self.region is None:
                self._move()

    def _move(self) -> None:
        region = l5.Region.create(self.stats(walk=False).arena_bytes)
        try:
            if region.fileno() < 0:
                raise OSError(errno.ENOTSUP, "there is no memory here that processes can share")
            self.move_into(region)
        except BaseException:
            region.close()
            raise

    def save(self, path: str | os.PathLike[str]) -> _snapshot.Saved:
        """Write the tree as it is at one moment to a file, from which `open` starts at once.

        The file is replaced as a whole, when the new one is on the disk: whatever happens, there is
        the old or the new one. Searches go on; writers wait while memory is copied (some 30 ms for
        a million rectangles). Raises OSError, and `SnapshotError` when another process is writing
        the same file.
        """
        return _snapshot.save(self._handle, path)

    def insert_many(self, rects: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """Insert n x 4 rectangles; ids are the row numbers unless given.

        All or none: a bad row (ValueError) or a full tree (`TreeFull`), both naming the row,
        leave none of them behind. Readers may see them arrive one by one.
        """
        rows = _rects(rects)
        numbers = _ids(ids, len(rows))
        bad_row = ffi.new("size_t *")
        error = lib.rt_insert_many(
            self._handle, _doubles(rows), _numbers(numbers), len(rows), bad_row
        )
        _raise_for_rows(error, self, rows, bad_row[0])

    def search_many(self, queries: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids).

        The ids of query i are ids[offsets[i]:offsets[i + 1]]. Queries may be infinite.
        """
        return _search_many(lib.rt_search_many, self._handle, queries)

    @overload
    def nearest(self, x: float, y: float, /, *, k: int = 1) -> list[int]: ...
    @overload
    def nearest(
        self, xmin: float, ymin: float, xmax: float, ymax: float, /, *, k: int = 1
    ) -> list[int]: ...
    def nearest(self, *where: float, k: int = 1) -> list[int]:
        """Return the ids of the k entries nearest to a point or rectangle, nearest first.

        Distance is between the closest points, 0 for what overlaps; equal distances come in order
        of id.
        """
        if len(where) == 2:
            return self.nearest_to(*where, *where, k)
        if len(where) != 4:
            raise TypeError(f"nearest() takes 2 or 4 coordinates, got {len(where)}")
        return self.nearest_to(*where, k)

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """The box of all rectangles; None if there are none."""
        box = ffi.new("double[4]")
        if lib.rt_bounds(self._handle, box) != 0:
            return None
        return (box[0], box[1], box[2], box[3])

    def stats(self, *, walk: bool = True) -> TreeStats:
        """Return the shape of the tree; visits every node.

        Without the `walk` the nodes by kind and their fill are 0, and the call costs nothing.
        """
        raw = ffi.new("struct rt_stats *")
        (lib.rt_stats if walk else lib.rt_summary)(self._handle, raw)
        return TreeStats(**{name: getattr(raw, name) for name in attrs.fields_dict(TreeStats)})

    def level_rects(self, level: int) -> Floats:
        """Return the boxes of the nodes of one level (0: leaves) as n x 4.

        They are as the tree stores them: rounded outwards to single precision. Raises IndexError
        when there is no such level.
        """
        total = ffi.new("size_t *")
        boxes: Floats = np.empty((0, 4))
        while True:
            if level < 0 or lib.rt_level_rects(
                self._handle, level, _doubles(boxes), len(boxes), total
            ):
                raise IndexError(f"level is {level}; the tree has {self.stats().height} levels")
            if total[0] <= len(boxes):
                return boxes[: total[0]]
            boxes = np.empty((total[0], 4))

    def check(self) -> None:
        """Check every invariant of the tree; raise RuntimeError with the first that is broken."""
        message = ffi.new("char[200]")
        error = lib.rt_check(self._handle, message, 200)
        if error == -errno.EILSEQ:
            raise RuntimeError("the tree is damaged: " + ffi.string(message).decode())
        if error:
            raise OSError(-error, os.strerror(-error))

    @property
    def kernel(self) -> str:
        """Which search kernel is in use: portable, avx2 or avx512."""
        return ffi.string(lib.rt_kernel_name(self._handle)).decode()

    def use_kernel(self, name: str) -> None:
        """Use another kernel, with the same results; ValueError if this processor has it not."""
        if lib.rt_set_kernel(self._handle, name.encode()) != 0:
            raise ValueError(f"kernel {name!r} does not exist or does not run on this processor")

    @property
    def _handle(self) -> Any:
        return ffi.cast("struct rtree *", self.address)


def _search_many(search: Any, handle: Any, queries: npt.ArrayLike) -> tuple[Ids, Ids]:
    """Call `rt_search_many`, or what has its form, until there is room for all."""
    rows = _rects(queries, "queries")
    offsets: Ids = np.zeros(len(rows) + 1, dtype=np.uint64)
    ids: Ids = np.empty(max(1024, 4 * len(rows)), dtype=np.uint64)
    done = ffi.new("size_t *")
    first = 0
    while True:
        used = int(offsets[first])
        part = offsets[first:]
        error = search(
            handle,
            _doubles(rows[first:]),
            len(rows) - first,
            _numbers(part),
            _numbers(ids[used:]),
            len(ids) - used,
            done,
        )
        part[: done[0] + 1] += np.uint64(used)
        first += done[0]
        if error != -errno.ENOBUFS:
            break
        ids = _enlarged(ids, int(offsets[first]), first, len(rows))
    _raise_for_query(error, rows, first)
    return offsets, ids[: int(offsets[-1])].copy() if len(ids) > 2 * int(offsets[-1]) else (
        ids[: int(offsets[-1])]
    )


def _rects(rects: npt.ArrayLike, what: str = "rectangles") -> Floats:
    rows = np.ascontiguousarray(rects, dtype=np.float64)
    if rows.size == 0:
        return np.empty((0, 4))
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise ValueError(
            f"{what} have shape {rows.shape}; it must be (n, 4): xmin, ymin, xmax, ymax"
        )
    return rows


def _ids(ids: npt.ArrayLike | None, count: int) -> Ids | None:
    if ids is None:
        return None
    given = np.asarray(ids)
    if given.shape != (count,):
        raise ValueError(f"ids have shape {given.shape}; it must be ({count},), one a rectangle")
    if given.dtype.kind not in "iu" and count:
        raise ValueError(f"ids have type {given.dtype}; they must be integers from 0 to 2**64 - 1")
    if given.dtype.kind == "i" and count and int(given.min()) < 0:
        row = int(np.argmax(given < 0))
        raise ValueError(f"row {row}: its id is {given[row]}; ids must not be negative")
    return np.ascontiguousarray(given, dtype=np.uint64)


def _doubles(rows: Floats) -> Any:
    return ffi.cast("double *", rows.ctypes.data)


def _numbers(ids: Ids | None) -> Any:
    return ffi.NULL if ids is None else ffi.cast("uint64_t *", ids.ctypes.data)


def _enlarged(ids: Ids, used: int, done: int, count: int) -> Ids:
    """Copy the used part to an array that should suffice for all, by the results so far."""
    expected = used * count // done if done else 0
    larger: Ids = np.empty(max(2 * len(ids), expected + expected // 8), dtype=np.uint64)
    larger[:used] = ids[:used]
    return larger


def _explain(rect: Floats, *, query: bool) -> str:
    message = ffi.new("char[160]")
    lib.rt_rect_explain(_doubles(rect), query, message, 160)
    return cast("str", ffi.string(message).decode())


def _raise_for_rows(error: int, tree: RTree, rows: Floats, row: int) -> None:
    if error == -errno.EINVAL:
        raise ValueError(f"row {row}: not a valid rectangle: {_explain(rows[row], query=False)}")
    if error == -errno.ENOSPC:
        raise TreeFull(
            f"row {row}: the tree is full: its arena has {tree.stats().capacity_nodes} nodes; "
            "make it with a greater capacity (nothing was inserted)"
        )
    if error:
        raise OSError(-error, os.strerror(-error))


def _raise_for_query(error: int, rows: Floats, row: int) -> None:
    if error == -errno.EINVAL:
        raise ValueError(f"row {row}: not a valid query: {_explain(rows[row], query=True)}")
    if error:
        raise OSError(-error, os.strerror(-error))
