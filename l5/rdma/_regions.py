"""Remote memory over RDMA: a memory link's mailbox, and READs, WRITEs and atomics beside it.

    owner     registers the region in the protection domain of this one link: address, key
    client    landing   |..|READs' data|..|WRITEs' data + a READ|..|old word|..|   registered once
              send queue   mailbox, READ READ READ*, mailbox, WRITE READ*, ATOMIC*     * signalled

One queue pair carries both; completions are told apart by their names (`wr_id`).  A place in the
landing memory is taken for each request and given back by its completion alone, in their order:
who was cancelled leaves its place to the request that is still on its way.

A fabric promises no order of the words of a READ, and atomics are atomic among themselves on one
device, not with the owner's processor.  A WRITE's completion says that the device has it: so a READ
of one byte goes behind it, which is answered when it is in memory.

Revoking deregisters.  A READ that comes later is refused by the owner's device, and a queue pair
does not survive that: the link is over then, with all its regions, and they say why.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs

from .._errors import RemoteAccessError, RemoteProtocolError, TransportUnavailable
from .._memory import BaseRegion, Piece
from .._waiter import Waiter
from ..abc import GrantedRegion, MemoryChannel, OpenedRegion
from . import verbs
from ._client import MailboxClient
from ._end import FIRST_OTHER, SEND_DEPTH, End, Memory
from ._mailbox import ALIGN, Arena
from ._server import MailboxServer

__all__ = ["MemoryClient", "MemoryServer", "VerbsRegion"]

PIECE_BYTES: Final = 64 << 10
LANDING_BYTES: Final = 1 << 20
"""Registered at the client for each memory link; a batch of READs takes a quarter at most."""
BATCH_MAX: Final = 16
"""READs with one completion."""
OUTSTANDING_MAX: Final = SEND_DEPTH // 2
"""Requests of regions on their way: the other half of the queue is the mailbox's."""
_FLUSH_BYTES: Final = 1
_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1


@attrs.define(eq=False)
class _Batch:
    """What one completion tells of: several READs, one WRITE, or one atomic."""

    region: VerbsRegion
    count: int
    """Requests in the send queue."""
    places: list[tuple[int, int]]
    """(place, length) of what arrives."""
    data: list[bytes] = attrs.Factory(list[bytes])
    done: bool = False
    wanted: bool = True
    """False: who asked has gone."""
    waiter: Waiter | None = None


class Access:
    """(Client) what is on its way to the regions of one link, and where it arrives."""

    def __init__(self, end: End) -> None:
        self.end = end
        memory = self._memory = Memory(LANDING_BYTES)
        end.keep(memory.close)
        self.landing = end.register(memory.address, LANDING_BYTES, verbs.LOCAL_WRITE, memory)
        end.on_other = self._on_completion
        end.on_broken = self._on_broken
        self.regions: weakref.WeakSet[VerbsRegion] = weakref.WeakSet()
        self.news = False
        """Somebody was woken by a completion."""
        self._arena = Arena(LANDING_BYTES, LANDING_BYTES // 4)
        self._pending: dict[int, _Batch] = {}
        self._outstanding = 0
        self._next_id = FIRST_OTHER
        self._waiters: set[Waiter] = set()

    # ---- posting: None means that there is no room now ------------------------------------------

    def _place(self, length: int, count: int) -> int | None:
        if self.end.broken or self._outstanding + count > OUTSTANDING_MAX:
            return None
        return self._arena.place(length) if self.end.room(count) else None

    def _post(
        self,
        region: VerbsRegion,
        places: list[tuple[int, int]],
        count: int,
        post: Callable[[int, int], None],
    ) -> _Batch:
        """Post `count` requests by ``post(flags, wr_id)``; what was placed last is theirs."""
        end = self.end
        flags = end.slots.take(count, verbs.SIGNALED)
        self._arena.keep(end.slots.posted)
        wr_id = self._next_id
        self._next_id += 1
        batch = self._pending[wr_id] = _Batch(region, count, places)
        self._outstanding += count
        counters = end.counters
        counters.posts += count
        counters.signalled = end.slots.signalled
        try:
            post(flags, wr_id)
        except verbs.VerbsError as error:
            end.fail(str(error))  # which ends the region: whoever waits hears of it
        return batch

    def read(self, region: VerbsRegion, spans: list[tuple[int, int]]) -> _Batch | None:
        """READ spans of a region's, all of them or none."""
        total = sum(_padded(length) for _, length in spans)
        start = self._place(total, len(spans))
        if start is None:
            return None
        places: list[tuple[int, int]] = []
        reads: list[tuple[int, int, int]] = []
        for offset, length in spans:
            places.append((start, length))
            reads.append((self._memory.address + start, region.address + offset, length))
            start += _padded(length)
        self.end.counters.reads += len(reads)
        return self._post(region, places, len(reads), lambda f, i: region.reads.post(reads, f, i))

    def write(self, region: VerbsRegion, offset: int, data: memoryview) -> _Batch | None:
        """WRITE, and READ a byte of it."""
        size = _padded(len(data))
        start = self._place(size + ALIGN, 2)
        if start is None:
            return None
        self._memory.view[start : start + len(data)] = data
        source, there = self._memory.address + start, region.address + offset

        def post(flags: int, wr_id: int) -> None:
            region.writes.post_at(source, there, len(data))
            region.reads.post([(source + size, there, _FLUSH_BYTES)], flags, wr_id)

        return self._post(region, [(start + size, _FLUSH_BYTES)], 2, post)

    def atomic(
        self, region: VerbsRegion, opcode: int, offset: int, operand: int, swap: int
    ) -> _Batch | None:
        """Do an atomic; the old word arrives."""
        start = self._place(8, 1)
        if start is None:
            return None
        request = self.end.pair.prepare_atomic(
            opcode, self.landing, address=self._memory.address + start, rkey=region.rkey
        )
        there = region.address + offset
        return self._post(
            region, [(start, 8)], 1, lambda f, i: request.post(there, operand, swap, f, i)
        )

    # ---- completions ----------------------------------------------------------------------------

    def _on_completion(self, wr_id: int) -> None:
        batch = self._pending.pop(wr_id, None)
        if batch is not None:
            self._outstanding -= batch.count
            if batch.wanted:
                view = self._memory.view
                batch.data = [bytes(view[at : at + length]) for at, length in batch.places]
            self._arena.release(self.end.slots.completed)
            batch.done = True
            self._wake(batch.waiter)
        for waiter in self._waiters:
            self._wake(waiter)

    def _wake(self, waiter: Waiter | None) -> None:
        if waiter is not None:
            self.news = True
            waiter.wake()

    def _on_broken(self, reason: str) -> None:
        text = (
            f"the memory link has ended: {reason}; if the owner has revoked one of the regions of"
            " this connection, open the others again"
        )
        for region in list(self.regions):
            region.end(text)

    def wake(self, region: VerbsRegion) -> None:
        """Wake all that wait for `region`: it has ended."""
        for batch in self._pending.values():
            if batch.region is region:
                self._wake(batch.waiter)
        for waiter in self._waiters:
            self._wake(waiter)

    def busy(self, region: VerbsRegion) -> bool:
        """Tell whether requests to `region` are on their way."""
        self.end.poll()
        return any(batch.region is region for batch in self._pending.values())

    async def progress(self, hub: Any) -> None:
        """Wait for a completion, of whatever, or for the end of a region."""
        waiter = Waiter()
        self._waiters.add(waiter)
        try:
            await hub.park(waiter)
        finally:
            self._waiters.discard(waiter)


def _padded(length: int) -> int:
    return (length + ALIGN - 1) & ~(ALIGN - 1)


class VerbsRegion(BaseRegion):
    """A region that is read and written by the device: nothing for the owner's processor to do.

    Aligned words are whole, and come in any order.  Atomics are atomic among those of clients that
    the same device serves, and with nothing else: not with what the owner does.
    """

    one_sided = True
    in_order = False

    def __init__(self, opened: OpenedRegion, access: Access, address: int, rkey: int) -> None:
        super().__init__(opened)
        self.piece_bytes = PIECE_BYTES
        self.address, self.rkey = address, rkey
        self._access = access
        pair, landing = access.end.pair, access.landing
        self.reads = pair.prepare_reads(landing, rkey=rkey, count_max=BATCH_MAX)
        self.writes = pair.prepare(verbs.OP_WRITE, landing, rkey=rkey)
        self._to_release = False
        access.regions.add(self)

    # ---- ends ---------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """See `BaseRegion.end`."""
        super().end(reason)
        self._access.wake(self)

    async def aclose(self) -> None:
        """See `RemoteRegion`; the owner hears of it when nothing is on its way any more.

        Else its device would refuse what arrives late, which ends the link.
        """
        if not self._ended:
            self.end(f"region {self.name!r} has been closed here")
            self._to_release = True
        while self._to_release and self._access.busy(self):
            try:
                self._link.check()
            except RemoteAccessError:
                break
            await self._access.progress(self._link.hub)
        if self._to_release:
            self._to_release = False
            await self._link.release(self)

    # ---- waiting ------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Let the event loop run if it is time."""
        if self._link.strict or self._link.hub.due():
            await self._link.hub.breathe()
        self.check()

    async def _arrival(self, batch: _Batch) -> list[bytes]:
        self._access.end.poll()
        try:
            await self._turn()
            while not batch.done:
                batch.waiter = Waiter()
                await self._link.hub.park(batch.waiter)
                self.check()
        except BaseException:
            batch.wanted = False
            raise
        finally:
            batch.waiter = None
        return batch.data

    async def _posted(self, post: Callable[[], _Batch | None]) -> _Batch:
        while True:
            self.check()
            batch = post()
            if batch is not None:
                return batch
            self.check()  # it may have been found out just now
            await self._access.progress(self._link.hub)

    # ---- operations ---------------------------------------------------------------------------

    async def _fetch(
        self, wanted: deque[Piece], arrived: Callable[[Piece, bytes], None], window: int
    ) -> None:
        begun: deque[tuple[_Batch, list[Piece]]] = deque()
        room = window
        await self._turn()
        try:
            while wanted or begun:
                if wanted and not wanted[0].length:
                    arrived(wanted.popleft(), b"")
                    continue
                if wanted and room:
                    pieces = _together(wanted, min(room, BATCH_MAX))
                    batch = self._access.read(self, [(one.offset, one.length) for one in pieces])
                    if batch is not None:
                        begun.append((batch, pieces))
                        room -= len(pieces)
                        continue
                    wanted.extendleft(reversed(pieces))
                if not begun:
                    self.check()
                    await self._access.progress(self._link.hub)
                    self.check()
                    continue
                batch, pieces = begun[0]
                found = await self._arrival(batch)
                begun.popleft()
                room += len(pieces)
                for piece, data in zip(pieces, found, strict=True):
                    arrived(piece, data)
        except BaseException:
            for batch, _ in begun:
                batch.wanted = False
            raise

    async def _put(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        begun: deque[_Batch] = deque()
        await self._turn()
        for offset, data in pieces:
            if not len(data):
                continue
            while len(begun) > 1:
                await self._arrival(begun.popleft())
            begun.append(
                await self._posted(lambda o=offset, d=data: self._access.write(self, o, d))
            )
        while begun:
            await self._arrival(begun.popleft())

    async def _atomic(self, opcode: int, offset: int, operand: int, swap: int) -> int:
        await self._turn()
        batch = await self._posted(lambda: self._access.atomic(self, opcode, offset, operand, swap))
        return int.from_bytes((await self._arrival(batch))[0], "little")

    async def _swap(self, offset: int, expected: int, desired: int) -> int:
        return await self._atomic(verbs.OP_COMPARE_AND_SWAP, offset, expected, desired)

    async def _add(self, offset: int, value: int) -> int:
        return await self._atomic(verbs.OP_FETCH_AND_ADD, offset, value, 0)


def _together(wanted: deque[Piece], count_max: int) -> list[Piece]:
    """Take the pieces that one batch of READs brings; at least one."""
    pieces = [wanted.popleft()]
    room = LANDING_BYTES // 4 - _padded(pieces[0].length)
    while wanted and len(pieces) < count_max and 0 < _padded(wanted[0].length) <= room:
        room -= _padded(wanted[0].length)
        pieces.append(wanted.popleft())
    return pieces


# ---- the channels -------------------------------------------------------------------------------


def _atomics(device: verbs.Device) -> bool:
    return device.limits.atomics != verbs.ATOMIC_NONE


class MemoryClient(MailboxClient, MemoryChannel):
    """The client's end of a memory link."""

    def __init__(self, end: End, ring_bytes: int) -> None:
        super().__init__(end, ring_bytes)
        self._access = Access(end)

    def grant(self, granted: GrantedRegion) -> Mapping[str, int | str | bytes | bool]:
        """See `MemoryChannel`: who connected owns nothing."""
        raise TransportUnavailable("rdma", "only the end that accepted grants regions")

    def withdraw(self, handle: int) -> None:
        """See `MemoryChannel`."""

    def reach(self, opened: OpenedRegion) -> VerbsRegion:
        address, key = opened.params.get("address"), opened.params.get("key")
        if (
            type(address) is not int
            or not 0 <= address <= _U64 + 1 - opened.size_bytes
            or (opened.atomic and address % 8)
            or type(key) is not int
            or not 0 <= key <= _U32
        ):
            raise RemoteProtocolError(
                f"the owner grants memory at {address!r} by the key {key!r}, which cannot be"
            )
        if not self._end.rd_atomic:
            raise TransportUnavailable("rdma", "one of the devices does no READs")
        if opened.atomic and not _atomics(self._end.device):
            raise TransportUnavailable("rdma", "the device here has no atomics")
        return VerbsRegion(opened, self._access, address, key)

    def _something(self, space: bool) -> bool:
        news, self._access.news = self._access.news, False
        return news or super()._something(space)


class MemoryServer(MailboxServer, MemoryChannel):
    """The owner's end of a memory link."""

    _granted: dict[int, tuple[verbs.MemoryRegion, memoryview]] | None = None

    def grant(self, granted: GrantedRegion) -> Mapping[str, int | str | bytes | bool]:
        region, end = granted.region, self._end
        if region.atomic and not _atomics(end.device):
            raise TransportUnavailable("rdma", "the device has no atomics")
        access = verbs.LOCAL_WRITE | verbs.REMOTE_READ  # some kernels refuse read-only memory
        access |= verbs.REMOTE_WRITE if region.writable else 0
        access |= verbs.REMOTE_ATOMIC if region.atomic else 0
        view = region.view
        try:
            address = verbs.address_of(view)
            registered = end.register(address, region.size_bytes, access, view)
        except verbs.VerbsError as error:
            view.release()
            raise TransportUnavailable("rdma", str(error)) from error
        self._granted = self._granted or {}
        self._granted[granted.handle] = (registered, view)
        return {"address": registered.address, "key": registered.rkey}

    def withdraw(self, handle: int) -> None:
        """See `MemoryChannel`: what is deregistered is refused by the device."""
        found = (self._granted or {}).pop(handle, None)
        if found is None:
            return
        registered, view = found
        if not registered.closed:
            try:
                self._end.deregister(registered)
            except verbs.VerbsError as error:
                self._end.fail(str(error))
                self._end.pair.to_error()  # so that nothing can come
                return
        view.release()

    def reach(self, opened: OpenedRegion) -> VerbsRegion:
        """See `MemoryChannel`: only who connected opens regions."""
        raise TransportUnavailable("rdma", "only the end that connected opens regions")

    def _release(self) -> None:
        super()._release()
        granted, self._granted = self._granted or {}, {}
        for _, view in granted.values():
            view.release()
