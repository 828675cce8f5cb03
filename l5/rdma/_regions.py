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

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import anyio

from .._errors import RemoteAccessError, RemoteProtocolError, TransportUnavailable
from .._memory import BaseRegion, Piece
from .._waiter import Waiter
from ..abc import GrantedRegion, MemoryChannel, OpenedRegion
from . import verbs
from ._client import MailboxClient
from ._end import End
from ._region_access import BATCH_MAX, LANDING_BYTES, Access, Batch, padded
from ._server import MailboxServer

__all__ = ["MemoryClient", "MemoryServer", "VerbsRegion"]

PIECE_BYTES: Final = 64 << 10
_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1


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

    def check(self) -> None:
        """See `BaseRegion.check`; a link whose queue pair is dead is over, so a new one is made."""
        broken = self._access.end.broken
        if broken:
            self._link.fail(anyio.BrokenResourceError(broken))
        super().check()

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

    async def _arrival(self, batch: Batch) -> list[bytes]:
        self._access.end.poll()
        try:
            await self._turn()
            while not batch.done:
                # A READ is back sooner than the device would wake us, most often.
                if not self._link.hub.spin_on(lambda: self._has_come(batch)):
                    batch.waiter = Waiter()
                    await self._link.hub.park(batch.waiter, spun=True)
                self.check()
        except BaseException:
            batch.wanted = False
            raise
        finally:
            batch.waiter = None
        return batch.data

    def _has_come(self, batch: Batch) -> bool:
        end = self._access.end
        end.poll()
        return batch.done or bool(end.broken)

    async def _posted(self, post: Callable[[], Batch | None]) -> Batch:
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
        begun: deque[tuple[Batch, list[Piece]]] = deque()
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
        begun: deque[Batch] = deque()
        await self._turn()
        for offset, data in pieces:
            if not len(data):
                continue
            while len(begun) > 1:
                await self._arrival(begun.popleft())
            begun.append(await self._posted(partial(self._access.write, self, offset, data)))
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
    room = LANDING_BYTES // 4 - padded(pieces[0].length)
    while wanted and len(pieces) < count_max and 0 < padded(wanted[0].length) <= room:
        room -= padded(wanted[0].length)
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
