"""Searching a served tree in its server's memory, without the server.

`open_tree` opens the region that `serve_tree` exports. Where it is mapped, C searches it in place
(`_mapped`); elsewhere a state machine in C says which nodes it wants (`native/rt_walk.h`) and
`RemoteRegion.read_each` fetches them, many at a time.
Either way nothing that is read is trusted, and what is found is what the server would have found;
`Disturbed` says that writers left no time for it, and the server is to be asked.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from time import monotonic
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt

import l5
from catfish_app import _wire
from catfish_app._kernels import ffi, lib
from catfish_app._mapped import (
    REGION_NAME,
    Disturbed,
    MappedMemory,
    MappedSearches,
    check_opened,
    check_searched,
    checked_queries,
)
from catfish_app._rtree import Floats, Ids

CACHE_NODES = 8192
"""Inner nodes that a client remembers, of 1 KiB each, where it reads copies."""
WINDOW = 64
"""Reads under way at a time, of one search."""
SEARCHES_AT_ONCE = 16
TRIES = 16
PAUSE_MAX_S = 0.005
SPANS = 64
VERSION_BYTES = 8
TURN = 64
"""So many searches of mapped memory, which never wait, before the event loop has a turn."""

_RECT = struct.Struct("=4d")


class _Looked:
    """Versions that were read before their nodes, where a copy's words may come in any order.

    A walk takes it that no word of a copy is older than the version beside it. Where nothing
    promises that (a fabric: see `l5/native/l5_page.h`, WORDS), the version is read first and waited
    for; a copy that bears another one is made to look torn, and is asked for again.
    """

    def __init__(self) -> None:
        self._versions: dict[int, bytes] = {}

    def first(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return what to read instead: of each node its version."""
        asked: list[tuple[int, int]] = []
        for offset, length in spans:
            if length == lib.RT_NODE_BYTES:
                self._versions[offset] = b""
                length = VERSION_BYTES
            asked.append((offset, length))
        return asked

    def is_first(self, offset: int, data: bytes) -> bool:
        """Take notice of a version; tell whether it is one, so that its node is read now."""
        if len(data) != VERSION_BYTES or self._versions.get(offset) != b"":
            return False
        self._versions[offset] = data
        return True

    def judged(self, offset: int, data: bytes) -> bytes:
        """Return what came, or a torn copy of it where the version is not that of before."""
        if len(data) != lib.RT_NODE_BYTES or self._versions.pop(offset) == data[:VERSION_BYTES]:
            return data
        return bytes((data[0] | 1,)) + data[1:]


class DirectTree(Protocol):
    """A served tree that this process reads; all raise `Disturbed`, or what `l5` has to say."""

    region: l5.abc.RemoteRegion
    reads: int
    """Reads of the last search that had to wait for each other, more or less."""
    at_once: int
    """Rows that `search_many` searches together."""

    @property
    def retries(self) -> int:
        """Attempts in vain, of all searches."""
        ...

    async def search(self, rect: Sequence[float] | Floats) -> Ids: ...

    async def count(self, rect: Sequence[float] | Floats) -> int: ...

    async def nearest(self, rect: Sequence[float] | Floats, k: int) -> tuple[Ids, Floats]: ...

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]: ...


async def open_tree(connection: l5.Connection) -> DirectTree:
    """Open the tree in its server's memory.

    Raises `l5.RemoteAccessError` when the server offers none, `l5.RemoteProtocolError` when what it
    offers is none, and what `l5.Connection.open_region` raises.
    """
    region = await connection.open_region(REGION_NAME)
    try:
        mapping = region.mapping
        if mapping is not None:
            return MappedTree(region, mapping)
        return WalkedTree(region, await region.read(0, lib.RT_REMOTE_HEAD_BYTES))
    except BaseException:
        await region.aclose()
        raise


class MappedTree(MappedSearches):
    """The tree in memory that is mapped here."""

    reads = 0
    at_once = 1

    def __init__(self, region: l5.abc.RemoteRegion, mapping: memoryview) -> None:
        super().__init__(MappedMemory(mapping))
        self.region = region
        self._turn = TURN

    @property
    def retries(self) -> int:
        """Attempts that a writer disturbed."""
        return self._memory.retries

    async def _look(self) -> None:
        """Let the event loop have its turn if it is time, and see whether the memory is there."""
        if self._turn <= 0:
            self._turn = TURN
            await anyio.lowlevel.checkpoint()
        if self.region.closed:
            await self.region.read(0, 8)  # raises, with the reason

    async def search(self, rect: Sequence[float] | Floats) -> Ids:
        """Return the ids of all rectangles that meet this one."""
        self._turn -= 1
        if not self._turn or self.region.closed:
            await self._look()
        return self.search_now(rect)

    async def count(self, rect: Sequence[float] | Floats) -> int:
        """Return how many rectangles meet this one."""
        self._turn -= 1
        if not self._turn or self.region.closed:
            await self._look()
        return self.count_now(rect)

    async def nearest(self, rect: Sequence[float] | Floats, k: int) -> tuple[Ids, Floats]:
        """Return the ids of the k nearest entries and their squared distances."""
        self._turn -= 1
        if not self._turn or self.region.closed:
            await self._look()
        return self.nearest_now(rect, k)

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids)."""
        self._turn -= 1
        if not self._turn or self.region.closed:
            await self._look()
        return self.search_many_now(rects)


class WalkedTree:
    """The tree in memory that is read from elsewhere."""

    at_once = SEARCHES_AT_ONCE

    def __init__(self, region: l5.abc.RemoteRegion, head: bytes) -> None:
        self.region = region
        self.reads = 0
        made = ffi.new("struct rt_remote **")
        check_opened(lib.rt_remote_open(made, head, len(head), region.size_bytes, CACHE_NODES))
        self._remote = ffi.gc(made[0], lib.rt_remote_close)
        self._idle: list[Any] = []
        self._spans = ffi.new("uint64_t[]", 2 * SPANS)

    @property
    def counts(self) -> dict[str, int]:
        """What has been read since it was opened: see `struct rt_walk_counts`."""
        raw = ffi.new("struct rt_walk_counts *")
        lib.rt_remote_counts(self._remote, raw)
        names = ("walks", "pages", "words", "cached", "torn", "retries")
        return {name: getattr(raw, name) for name in names}

    @property
    def retries(self) -> int:
        """Attempts in vain."""
        return int(lib.rt_remote_retries(self._remote))

    def _new_walk(self) -> tuple[Any, Any]:
        made = ffi.new("struct rt_walk **")
        check_opened(lib.rt_walk_create(made, self._remote))
        return ffi.gc(made[0], lib.rt_walk_destroy), self._remote

    def _wanted(self, walk: Any) -> list[tuple[int, int]]:
        count = lib.rt_walk_want(walk, self._spans, SPANS)
        spans = self._pairs(count)
        return spans if count < SPANS else spans + self._wanted(walk)

    def _pairs(self, count: int) -> list[tuple[int, int]]:
        numbers = iter(ffi.unpack(self._spans, 2 * count) if count else ())
        return list(zip(numbers, numbers, strict=True))

    def _got(self, walk: Any, offset: int, data: bytes) -> Sequence[tuple[int, int]]:
        """Give a walk what it wanted; return what it wants now."""
        count = lib.rt_walk_take(walk, offset, data, len(data), self._spans, SPANS)
        if not count:
            return ()
        if count < 0:
            raise OSError(-count, f"the search failed: {errno.errorcode.get(-count, count)}")
        spans = self._pairs(count)
        return spans if count < SPANS else spans + self._wanted(walk)

    async def _read(self, walk: Any) -> None:
        """Serve a walk until it is over."""
        rounds = 0
        looked = None if self.region.in_order else _Looked()

        def take(offset: int, data: bytes) -> Sequence[tuple[int, int]]:
            nonlocal rounds
            if looked is not None:
                if looked.is_first(offset, data):
                    return ((offset, lib.RT_NODE_BYTES),)
                data = looked.judged(offset, data)
            more = self._got(walk, offset, data)
            if not more:
                return more
            rounds += 1
            return more if looked is None else looked.first(more)

        spans = self._wanted(walk)
        await self.region.read_each(
            spans if looked is None else looked.first(spans), take, window=WINDOW
        )
        self.reads = rounds + 1

    async def _walk(self, walk: Any, kind: int, rect: Sequence[float] | Floats, k: int = 0) -> None:
        query = ffi.from_buffer("double[]", _RECT.pack(*rect))
        nearest = kind == lib.RT_WALK_NEAREST
        error = lib.rt_walk_begin(walk, kind, query, k, int(monotonic()))
        if error:
            check_searched(error, rect, query=not nearest)
        for tries in range(TRIES):
            await self._read(walk)
            outcome = lib.rt_walk_outcome(walk)
            if outcome != -errno.EAGAIN:
                break
            if tries:
                await anyio.sleep(min(PAUSE_MAX_S, 50e-6 * 2**tries))
            check_opened(lib.rt_walk_again(walk))
        else:
            raise Disturbed
        if outcome:
            check_searched(outcome, rect)

    async def _found(
        self, kind: int, rect: Sequence[float] | Floats, k: int = 0
    ) -> tuple[int, bytes, bytes]:
        """Walk; return how many were found, their ids, and squared distances."""
        pair = self._idle.pop() if self._idle else self._new_walk()
        walk = pair[0]
        try:
            await self._walk(walk, kind, rect, k)
            total = lib.rt_walk_total(walk)
            ids = squares = b""
            if kind != lib.RT_WALK_COUNT and total:
                ids = ffi.buffer(lib.rt_walk_ids(walk), total * 8)[:]
            if kind == lib.RT_WALK_NEAREST and total:
                squares = ffi.buffer(lib.rt_walk_distances2(walk), total * 8)[:]
            return total, ids, squares
        finally:
            self._idle.append(pair)

    async def search(self, rect: Sequence[float] | Floats) -> Ids:
        """Return the ids of all rectangles that meet this one."""
        _, ids, _ = await self._found(lib.RT_WALK_SEARCH, rect)
        return np.frombuffer(ids, _wire.U64)

    async def count(self, rect: Sequence[float] | Floats) -> int:
        """Return how many rectangles meet this one."""
        total, _, _ = await self._found(lib.RT_WALK_COUNT, rect)
        return total

    async def nearest(self, rect: Sequence[float] | Floats, k: int) -> tuple[Ids, Floats]:
        """Return the ids of the k nearest entries and their squared distances."""
        _, ids, squares = await self._found(lib.RT_WALK_NEAREST, rect, k)
        return np.frombuffer(ids, _wire.U64), np.frombuffer(squares, _wire.F64)

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles, some at a time; return (offsets, ids)."""
        rows = checked_queries(rects)
        found: list[Ids] = [np.empty(0, _wire.U64)] * len(rows)
        numbers = iter(range(len(rows)))
        failures: list[Exception] = []

        async def work() -> None:
            try:
                for number in numbers:
                    found[number] = await self.search(rows[number])
            except Exception as error:  # the first is raised below, by itself
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(min(SEARCHES_AT_ONCE, len(rows))):
                tasks.start_soon(work)
        if failures:
            raise failures[0]
        offsets = np.zeros(len(rows) + 1, np.uint64)
        np.cumsum([len(ids) for ids in found], out=offsets[1:])
        return offsets, _wire.join_ids(found)
