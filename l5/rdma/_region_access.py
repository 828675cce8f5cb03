"""What is on its way to the regions of a memory link over RDMA; see `l5.rdma._regions`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._waiter import Waiter
from . import verbs
from ._end import FIRST_OTHER, SEND_DEPTH, End, Memory
from ._mailbox import ALIGN, Arena

if TYPE_CHECKING:
    from ._regions import VerbsRegion

__all__ = ["BATCH_MAX", "LANDING_BYTES", "Access", "Batch", "padded"]

LANDING_BYTES: Final = 1 << 20
"""Registered at the client for each memory link; a batch of READs takes a quarter at most."""
BATCH_MAX: Final = 16
"""READs with one completion."""
OUTSTANDING_MAX: Final = SEND_DEPTH // 2
"""Requests of regions on their way: the other half of the queue is the mailbox's."""
_FLUSH_BYTES: Final = 1


@attrs.define(eq=False)
class Batch:
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
        self._pending: dict[int, Batch] = {}
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
    ) -> Batch:
        """Post `count` requests by ``post(flags, wr_id)``; what was placed last is theirs."""
        end = self.end
        flags = end.slots.take(count, verbs.SIGNALED)
        self._arena.keep(end.slots.posted)
        wr_id = self._next_id
        self._next_id += 1
        batch = self._pending[wr_id] = Batch(region, count, places)
        self._outstanding += count
        counters = end.counters
        counters.posts += count
        counters.signalled = end.slots.signalled
        try:
            post(flags, wr_id)
        except verbs.VerbsError as error:
            end.fail(str(error))  # which ends the region: whoever waits hears of it
        return batch

    def read(self, region: VerbsRegion, spans: list[tuple[int, int]]) -> Batch | None:
        """READ spans of a region's, all of them or none."""
        total = sum(padded(length) for _, length in spans)
        start = self._place(total, len(spans))
        if start is None:
            return None
        places: list[tuple[int, int]] = []
        reads: list[tuple[int, int, int]] = []
        for offset, length in spans:
            places.append((start, length))
            reads.append((self._memory.address + start, region.address + offset, length))
            start += padded(length)
        self.end.counters.reads += len(reads)
        return self._post(region, places, len(reads), lambda f, i: region.reads.post(reads, f, i))

    def write(self, region: VerbsRegion, offset: int, data: memoryview) -> Batch | None:
        """WRITE, and READ a byte of it."""
        size = padded(len(data))
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
    ) -> Batch | None:
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


def padded(length: int) -> int:
    """Return what so many bytes take of the landing memory."""
    return (length + ALIGN - 1) & ~(ALIGN - 1)
