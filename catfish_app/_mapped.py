"""A served tree in its server's memory, mapped here: C searches it in place.

No copy, no lock, no system call, and nothing to wait for (`native/rt_foreign.h`). Nothing that is
read is trusted, and what is found is what the server would have found; `Disturbed` says that
writers left no time for it, and the server is to be asked.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import l5
from catfish_app import _wire
from catfish_app._kernels import ffi, lib
from catfish_app._rtree import Floats, Ids, _explain, _rects, _search_many

REGION_NAME = "rtree"
ROOM_IDS = 1024

_RECT = struct.Struct("=4d")


class Disturbed(Exception):
    """Writers disturbed the search so often that the server is to be asked."""


def no_tree(error: l5.RemoteAccessError) -> l5.RemoteAccessError:
    """Return what to raise when the region could not be opened."""
    return l5.RemoteAccessError(
        f"the server offers no tree to search in its memory ({error}): share=False"
        " (catfish serve --no-share), or its log tells why it cannot share one"
    )


def _is_no_tree(what: str) -> l5.RemoteProtocolError:
    return l5.RemoteProtocolError(
        f"the server's memory makes no sense: {what}; is it of another version?"
    )


def check_opened(error: int) -> None:
    """Say what the C code has found wrong with the memory."""
    if error == -errno.EILSEQ:
        raise _is_no_tree("it holds no tree that this client can read")
    if error:
        raise OSError(-error, f"no tree: {errno.errorcode.get(-error, error)}")


def check_searched(error: int, rect: Any, *, query: bool = True) -> None:
    """Say what the C code has found wrong with a search."""
    if error == -errno.EAGAIN:
        raise Disturbed
    if error == -errno.EILSEQ:
        raise _is_no_tree("its tree is damaged")
    if error == -errno.EINVAL:
        kind = "query" if query else "rectangle"
        reason = _explain(np.array(rect, np.float64), query=query)
        raise ValueError(f"not a valid {kind}: {reason}")
    if error:
        raise OSError(-error, f"the search failed: {errno.errorcode.get(-error, error)}")


def checked_queries(rects: npt.ArrayLike) -> Floats:
    """Return n x 4 rectangles to search with; `ValueError` names the row of one that is none."""
    rows = _rects(rects, "queries")
    good = rows[:, 0] <= rows[:, 2]  # false for NaN; by columns, which takes a fifth of the time
    good &= rows[:, 1] <= rows[:, 3]
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"row {row}: not a valid query: {_explain(rows[row], query=True)}")
    return rows


class MappedMemory:
    """The memory, in which it has been seen that there is a tree; for any number of threads."""

    def __init__(self, mapping: memoryview) -> None:
        made = ffi.new("struct rt_foreign **")
        # It stays mapped as long as this does. Not of the view: Python before 3.14 can crash when
        # it collects a cycle in which a memoryview stands, and this one would stand in ours.
        self._memory = ffi.from_buffer(mapping.obj)
        check_opened(lib.rt_foreign_open(made, self._memory, len(mapping)))
        self.tree = ffi.gc(made[0], lib.rt_foreign_close)

    @property
    def retries(self) -> int:
        """Attempts that a writer disturbed."""
        return int(lib.rt_foreign_retries(self.tree))


class MappedSearches:
    """Searches of mapped memory, one at a time: they have their buffers in common.

    `struct.error` or `TypeError` for what is not four numbers, `ValueError` for four that are no
    rectangle; `Disturbed`, `l5.RemoteProtocolError`.
    """

    def __init__(self, memory: MappedMemory) -> None:
        self._memory = memory
        self._tree = memory.tree
        self._rect = bytearray(_RECT.size)
        self._query = ffi.from_buffer("double[]", self._rect)
        self._total = ffi.new("size_t *")
        self._number = ffi.new("uint64_t *")
        self._ids = ffi.new("uint64_t[]", ROOM_IDS)
        self._room = ROOM_IDS

    def search_now(self, rect: Sequence[float] | Floats) -> Ids:
        """Return the ids of all rectangles that meet this one."""
        _RECT.pack_into(self._rect, 0, *rect)
        while True:
            error = lib.rt_foreign_search(
                self._tree, self._query, self._ids, self._room, self._total
            )
            if error:
                check_searched(error, rect)
            total = self._total[0]
            if total <= self._room:
                return np.frombuffer(ffi.buffer(self._ids, total * 8)[:], _wire.U64)
            self._room = total + total // 8
            self._ids = ffi.new("uint64_t[]", self._room)

    def count_now(self, rect: Sequence[float] | Floats) -> int:
        """Return how many rectangles meet this one."""
        _RECT.pack_into(self._rect, 0, *rect)
        error = lib.rt_foreign_count(self._tree, self._query, self._number)
        if error:
            check_searched(error, rect)
        return int(self._number[0])

    def nearest_now(self, rect: Sequence[float] | Floats, k: int) -> tuple[Ids, Floats]:
        """Return the ids of the k nearest entries and their squared distances."""
        _RECT.pack_into(self._rect, 0, *rect)
        k = min(k, int(lib.rt_foreign_size(self._tree)))
        ids, squares = np.empty(k, _wire.U64), np.empty(k, _wire.F64)
        error = lib.rt_foreign_nearest(
            self._tree,
            self._query,
            k,
            ffi.cast("uint64_t *", ids.ctypes.data),
            ffi.cast("double *", squares.ctypes.data),
            self._total,
        )
        if error:
            check_searched(error, rect, query=False)
        found = self._total[0]
        return ids[:found], squares[:found]

    def search_many_now(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids)."""
        try:
            return _search_many(lib.rt_foreign_search_many, self._tree, rects)
        except OSError as error:
            check_searched(-(error.errno or errno.EIO), rects)
            raise
