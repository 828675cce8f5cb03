"""One end of an RDMA connection: its queue pair, its memory, and what is on its way.

Everything is this connection's own: protection domain, completion queue, queue pair, registered
memory.  So a key opens nothing of another client's, an overrun or a broken queue pair ends one
connection, and giving back is one list, in order.

Memory is given back when completions say that nothing of it is on its way any more, or when the
queue pair is gone: it is closed first.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable

import attrs

from .. import native
from . import verbs
from ._mailbox import ALIGN, WORDS, Arena

logger = logging.getLogger("l5.rdma")

SEND_DEPTH = 64
"""Requests that may be on their way; a completion is asked for once in 32."""
INLINE_BYTES = 220
SENT, WAS_READ, RECEIVED, FIRST_OTHER = 0, 1, 2, 16
"""What completions are called; from FIRST_OTHER on, those that are not the mailbox's."""
ARENA_BYTES = 64 * 1024
SCRATCH_BYTES = 4096
_INLINE_AT = 2 * ALIGN
"""The scratch: a flag's byte, the peer's words, and then what is sent inline."""


@attrs.define
class Counters:
    """What a connection's end did; see `l5.MailboxStatistics`."""

    posts: int = 0
    inline: int = 0
    signalled: int = 0
    completions: int = 0
    immediates: int = 0
    receives: int = 0
    reads: int = 0
    notices: int = 0
    resizes: int = 0
    sleeps: int = 0


class Mirror:
    """Memory that is mapped twice in a row, so that nothing in it wraps."""

    def __init__(self, size: int) -> None:
        base = native.ffi.new("uint8_t **")
        code = native.lib.l5_mirror_map(size, base)
        if code:
            raise OSError(-code, os.strerror(-code))
        self._base = base[0]
        self.address: int = int(native.ffi.cast("uintptr_t", base[0]))
        self.size = size

    def close(self) -> None:
        """Unmap it; nothing may refer to it any more."""
        if self._base is not None:
            native.lib.l5_mirror_unmap(self._base, self.size)
            self._base = None


class Memory:
    """Pages of this process, with an address."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        self.view = memoryview(self._map)
        # Python before 3.14 can crash when it collects a cycle in which a memoryview stands: the
        # finalizer keeps it out of ours.
        self._release = weakref.finalize(self, self.view.release)
        self.address = verbs.address_of(self._map)

    def close(self) -> None:
        """Unmap it."""
        self._release()
        self._map.close()


class End:
    """See the module's docstring."""

    def __init__(
        self, device: verbs.Device, gid: verbs.Gid, *, receives: int, atomics: bool = False
    ) -> None:
        self.device = device
        self.gid = gid
        self.counters = Counters()
        self.slots = verbs.SendSlots(SEND_DEPTH)
        self.broken = ""
        """Why nothing can be sent any more."""
        self.arrived = 0
        """Immediates that completed."""
        self.posted_receives = 0
        self.on_read: Callable[[], None] | None = None
        self.on_other: Callable[[int], None] | None = None
        """Called with the name of each completion of the send queue."""
        self.on_broken: Callable[[str], None] | None = None
        """Called once, with what is in `broken`."""
        self.rd_atomic = 0
        """READs and atomics that may be outstanding, as agreed."""
        self._regions: list[verbs.MemoryRegion] = []
        self._keepers: list[Callable[[], None]] = []
        self._retired: deque[tuple[int, verbs.MemoryRegion, Memory]] = deque()
        self._pid = os.getpid()
        self._made: list[verbs.Resource] = []
        try:
            self._open(device, receives, atomics)
            self._open_scratch()
            self._stage(ARENA_BYTES)
        except BaseException:
            self.close()
            raise

    def _open(self, device: verbs.Device, receives: int, atomics: bool) -> None:
        remote_access = verbs.REMOTE_WRITE | verbs.REMOTE_READ
        if atomics and device.limits.atomics != verbs.ATOMIC_NONE:
            remote_access |= verbs.REMOTE_ATOMIC
        self.domain = device.protection_domain()
        self._made.append(self.domain)
        self.queue = device.completion_queue(SEND_DEPTH + receives, events=True)
        self._made.append(self.queue)
        options = verbs.QueuePairOptions(
            send_depth=SEND_DEPTH,
            receive_depth=receives,
            inline_bytes=INLINE_BYTES,
            remote_access=remote_access,
        )
        self.pair = self.domain.queue_pair(self.queue, self.queue, options)
        self._made.append(self.pair)
        self._receive = self.pair.prepare_receive(wr_id=RECEIVED)
        self.own_address = self.pair.own_address(self.gid)

    # ---- memory ---------------------------------------------------------------------------------

    def register(self, address: int, size: int, access: int, owner: object) -> verbs.MemoryRegion:
        """Register memory for the life of the connection, or until `deregister`."""
        region = self.domain.register(address, size, access, owner=owner)
        self._regions.append(region)
        return region

    def deregister(self, region: verbs.MemoryRegion) -> None:
        """Give a region back early: nobody writes or reads it any more."""
        region.close()
        self._regions.remove(region)

    def keep(self, close: Callable[[], None]) -> None:
        """Call `close` after the regions are gone: for memory."""
        self._keepers.append(close)

    def _stage(self, size: int) -> None:
        memory = Memory(size)
        try:
            staging = self.domain.register(memory.address, size, verbs.LOCAL_WRITE, owner=memory)
        except BaseException:
            memory.close()
            raise
        self.memory, self.staging = memory, staging
        self.arena = Arena(size, size // 4)

    def _open_scratch(self) -> None:
        memory = self.scratch_memory = Memory(SCRATCH_BYTES)
        self.keep(memory.close)
        self.scratch = self.register(memory.address, SCRATCH_BYTES, verbs.LOCAL_WRITE, memory)
        memory.view[0] = 1
        self.flag_source = memory.address
        self.words_source = memory.address + ALIGN
        self.inline_source = memory.address + _INLINE_AT
        self.inline_max = min(self.pair.inline_bytes, SCRATCH_BYTES - _INLINE_AT)

    def words(self) -> tuple[int, int]:
        """Return the peer's words, as they were READ."""
        return WORDS.unpack_from(self.scratch_memory.view, ALIGN)

    def begin(self, length: int, count: int) -> int | None:
        """Return where `length` bytes can be sent from, by the first of `count` requests.

        0 is what is sent inline; None: there is no room now.  Else `fill` has to follow.
        """
        if self.broken or not self.room(count):
            return None
        if length <= self.inline_max:
            return 0
        at = self.arena.place(length)
        if at is None:
            self.poll()
            at = None if self.broken else self.arena.place(length)
        return None if at is None else self.memory.address + at

    def fill(self, address: int, data: bytes, count: int, *, final: bool) -> int:
        """Put `data` where `begin` said; return the flags of the last request.

        With `final` a completion is asked for.
        """
        counters = self.counters
        if address:
            at = address - self.memory.address
            self.memory.view[at : at + len(data)] = data
            last = self.slots.take(count, verbs.SIGNALED if final or self.arena.short else 0)
            self.arena.keep(self.slots.posted)
        else:
            self.scratch_memory.view[_INLINE_AT : _INLINE_AT + len(data)] = data
            last = self.slots.take(count, verbs.SIGNALED if final else 0)
            counters.inline += 1
        counters.posts += count
        counters.signalled = self.slots.signalled
        return last

    def post_nothing(self, remote_address: int, rkey: int, flags: int) -> None:
        """Write no bytes, for the completion; the slot has been taken, and is counted elsewhere."""
        self.pair.prepare(
            verbs.OP_WRITE,
            self.scratch,
            address=self.inline_source,
            remote_address=remote_address,
            rkey=rkey,
        ).post(0, flags)

    def prepare_staging(self, length: int) -> bool:
        """Make room for messages of `length` bytes; True when requests have to be prepared anew.

        What is on its way keeps the old memory until its completion.
        """
        if length <= self.arena.largest:
            return False
        old = (self.slots.posted, self.staging, self.memory)
        size = self.arena.size
        while size < 4 * length:
            size *= 2
        self._stage(size)
        self._retired.append(old)
        return True

    def _give_back(self) -> None:
        self.arena.release(self.slots.completed)
        while self._retired and self._retired[0][0] <= self.slots.completed:
            _, region, memory = self._retired.popleft()
            region.close()
            memory.close()

    # ---- what is on its way ---------------------------------------------------------------------

    def connect(self, remote: verbs.QueuePairAddress) -> None:
        """Connect the queue pair; it can be used from now on."""
        options = verbs.agree(self.own_address, remote)
        self.pair.connect(remote, options, gid=self.gid)
        self.rd_atomic = options.rd_atomic

    def post_receives(self, count: int) -> None:
        """Post receives for as many immediates."""
        if count and not self.broken:
            try:
                self._receive.post(count)
            except verbs.VerbsError as error:
                self.fail(str(error))
                return
            self.posted_receives += count
            self.counters.receives += count

    def room(self, count: int) -> bool:
        """Tell whether so many requests may be posted now; completions are looked for first."""
        if self.slots.free < count:
            self.poll()
        return self.slots.free >= count

    def poll(self) -> None:
        """Take the completions that are there."""
        slots, counters = self.slots, self.counters
        while True:
            try:
                found = self.queue.poll(32)
            except verbs.VerbsError as error:
                self.fail(str(error))
                return
            for one in found:
                if one.status != verbs.SUCCESS:
                    self.fail(one.text)
                    continue
                counters.completions += one.wr_id != RECEIVED
                if one.wr_id == RECEIVED:
                    self.arrived += 1
                    counters.immediates += 1
                    continue
                slots.done()
                if one.wr_id == WAS_READ and self.on_read is not None:
                    self.on_read()
                if self.on_other is not None:
                    self.on_other(one.wr_id)
            if len(found) < 32:
                break
        if not self.broken:
            self._give_back()

    def fail(self, reason: str) -> None:
        """Note that the queue pair is in error; what came before it can still be read."""
        if not self.broken:
            logger.debug("queue pair %d: %s", self.pair.number, reason)
            self.broken = reason
            self.slots.close(reason)
            if self.on_broken is not None:
                self.on_broken(reason)

    def drained(self) -> bool:
        """Tell whether nothing is on its way any more."""
        self.poll()
        return bool(self.broken) or not self.slots.outstanding

    # ---- ends -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Give everything back, in order; may be called twice."""
        if self._pid != os.getpid():
            return  # all of it is the parent's
        self.slots.close("it is closed")
        made, self._made = self._made, []
        staged = [(region, memory) for _, region, memory in self._retired]
        self._retired.clear()
        if hasattr(self, "staging"):
            staged.append((self.staging, self.memory))
        # After the queue pair is gone, nothing of ours is read or written any more.
        pairs = [each for each in made if isinstance(each, verbs.QueuePair)]
        for resource in (*pairs, *self._regions, *(region for region, _ in staged)):
            _try(resource.close)
        for resource in made[::-1]:
            if isinstance(resource, verbs.CompletionQueue):
                _try(resource.drain_events)
            _try(resource.close)
        for close in (*(memory.close for _, memory in staged), *self._keepers):
            _try(close)
        self._regions.clear()
        self._keepers.clear()


def _try(close: Callable[[], object]) -> None:
    """One that cannot be given back must not keep the others."""
    try:
        close()
    except (verbs.VerbsError, OSError, BufferError) as error:
        logger.warning("an RDMA resource could not be given back: %s", error)
