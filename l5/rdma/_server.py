"""The server's end of a mailbox: it reads a client's row, and writes into the client's ring."""

from __future__ import annotations

from collections import deque
from typing import Any

from .. import native
from .._errors import RemoteProtocolError
from .._frames import HEADER, Flag
from . import verbs
from ._channel import REFUSALS, MailboxChannel
from ._end import WAS_READ, End, Memory
from ._mailbox import (
    CARRIED_MAX,
    HEADER_BYTES,
    MESSAGE_OVERHEAD,
    NOTICE_BYTES,
    ROW_OVERHEAD,
    SIZE_BYTES,
    WORDS,
    Frame,
    NewRow,
    RingWriter,
    parse_row,
    row_size,
)
from ._room import Mailroom

RECEIVES = 32
WAITS_MAX = 3
_SPOT_FLAGS = 0
_NO_SIZE = bytes(SIZE_BYTES)


class MailboxServer(MailboxChannel):
    """See the module's docstring."""

    def __init__(self, end: End, room: Mailroom, row_bytes: int, row_max: int) -> None:
        super().__init__(end, RECEIVES)
        self.flagged = False
        """The flag was found set, and taken."""
        self._room = room
        self._place, address = room.take_place(self)
        end.keep(lambda: room.give_back(self._place))
        self.flag_region = end.register(
            address, 1, verbs.LOCAL_WRITE | verbs.REMOTE_WRITE, owner=room
        )
        self._row_max = row_max
        self._old: tuple[verbs.MemoryRegion, Memory] | None = None
        self._make_row(row_bytes)
        self._flag = native.Spot(_SPOT_FLAGS, address, 1)
        self._spot_added = self._in_room = False
        self._reading = False
        self._waits = 0

    def _make_row(self, size: int) -> None:
        memory = Memory(size)
        try:
            region = self._end.register(
                memory.address, size, verbs.LOCAL_WRITE | verbs.REMOTE_WRITE, memory
            )
        except BaseException:
            memory.close()
            raise
        self._row, self.row_region = memory, region

    def connect(
        self,
        mode: str,
        remote: verbs.QueuePairAddress,
        ring: NewRow,
        words: tuple[int, int],
        receives: int,
    ) -> None:
        """Connect to a client's ring, and the words that say how far it has read."""
        end, pair = self._end, self._end.pair
        self._ring = ring
        self.frame_limit = ring.bytes // 4 - MESSAGE_OVERHEAD - NOTICE_BYTES
        self._begin(mode, remote)
        self._writer = RingWriter(ring.bytes, self.with_imm, receives, receives=receives)
        self._prepare()
        end.on_read = self._was_read
        self._read = pair.prepare(
            verbs.OP_READ,
            end.scratch,
            address=end.words_source,
            remote_address=words[0],
            rkey=words[1],
            wr_id=WAS_READ,
        )

    def _prepare(self) -> None:
        end, pair, ring = self._end, self._end.pair, self._ring
        opcode = verbs.OP_WRITE_WITH_IMM if self.with_imm else verbs.OP_WRITE
        self._inline = pair.prepare(opcode, end.scratch, address=end.inline_source, rkey=ring.rkey)
        self._staged = pair.prepare(opcode, end.staging, rkey=ring.rkey)

    # ---- receiving ------------------------------------------------------------------------------

    def _has_arrived(self) -> bool:
        if self.in_memory:
            return self.flagged or self._flag.poll()
        if self._end.arrived == self._writer.rows:
            self._end.poll()
        return self._end.arrived > self._writer.rows

    def _take_flag(self) -> bool:
        if not self.in_memory:
            return self._has_arrived()
        if self.flagged:
            self.flagged = False
            return True
        return self._flag.take_flag(0)

    def _advance(self) -> None:
        while not self._frames and self._take_flag():
            self._take_row()

    def _take_row(self) -> None:
        """Copy the row out, and only then look at it: the client can still write there."""
        view, writer = self._row.view, self._writer
        # A copy: the error that it raises must not hold a view of memory that is about to go.
        size = row_size(bytes(view[:SIZE_BYTES]), len(view))
        data = bytes(view[SIZE_BYTES : SIZE_BYTES + size])
        view[:SIZE_BYTES] = _NO_SIZE  # a flag without a new row is a fault
        row = parse_row(data, self._receive_limit)
        if self._old is not None:  # the client uses the new row
            region, memory = self._old
            self._old = None
            self._end.deregister(region)
            memory.close()
        writer.learn(row.read, row.receives)
        writer.rows += 1
        self._waits = 0
        if row.wanted_bytes:
            self._resize(row.wanted_bytes)
        self._frames.extend(row.frames)
        if self.with_imm and writer.rows % 16 == 0:
            self._end.poll()
            self._repost()
        if self._session is not None:
            self._owe(row.frames)

    def _owe(self, frames: deque[Frame]) -> None:
        """Say that the row is free: by itself if its rest is wanted first, else by an answer."""
        assert self._session is not None
        hub = self._session.hub
        if not frames or not frames[-1][1] & Flag.MORE or not self.settle():
            hub.owe(self)
        if len(frames) > 1:
            hub.touch(self._session)  # no memory says that some of them are still here

    def _resize(self, wanted_bytes: int) -> None:
        size = min(wanted_bytes, self._row_max)
        if size <= self._row.size:
            raise RemoteProtocolError(
                f"the peer asks for a row of {wanted_bytes} bytes and has one of {self._row.size}"
            )
        self._old = (self.row_region, self._row)
        try:
            self._make_row(size)
        except REFUSALS as error:
            self._end.fail(f"no row of {size} bytes for the peer: {error}")
            return
        self._writer.row = NewRow(self.row_region.address, self.row_region.rkey, size)
        self.counters.resizes += 1

    # ---- sending --------------------------------------------------------------------------------

    def _accept(self, frame: tuple[int, int, int, memoryview], size: int) -> bool:
        if not self._writer.fits(size):
            self._end.poll()
            self._ask(short=True)
            if not self._writer.fits(size):
                self._refused = size
                return False
        self._refused = 0
        return self._post(frame, size, self._is_final(frame[0]))

    _refused = 0

    def _post(
        self, frame: tuple[int, int, int, memoryview] | None, size: int | None, final: bool
    ) -> bool:
        end, writer = self._end, self._writer
        length = SIZE_BYTES + writer.message_bytes(size) + 1
        if end.prepare_staging(length):
            self._prepare()
        address = end.begin(length, 1)
        if address is None:
            return False
        at, data = writer.pack(frame)
        last = end.fill(address, data, 1, final=final)
        request = self._staged if address else self._inline
        source = address or end.inline_source
        flags = last if address else last | verbs.INLINE
        request.post_at(source, self._ring.address + at, len(data), flags)
        self._ask(short=writer.wants_read)
        return True

    def carry(self, kind: int, flags: int, id: int, payload: bytes) -> bool:
        frame = HEADER.pack(len(payload), kind, flags, 0, id) + payload
        if len(frame) > CARRIED_MAX:
            return False
        self._writer.carried = frame
        return True

    def _ask(self, *, short: bool) -> None:
        """READ how far the client is, if it is not being done."""
        end = self._end
        if not short or self._reading or not end.rd_atomic or end.broken or not end.room(1):
            return  # a device that answers no READs: the client's rows say how far it is
        if self._writer.asked_at == self._writer.write:
            return  # nothing was written since: the client itself says when it has read
        self._writer.asked_at = self._writer.write
        self._reading = True
        self._read.post(WORDS.size, end.slots.take(1, verbs.SIGNALED))
        self.counters.reads += 1
        self.counters.signalled = end.slots.signalled

    def _was_read(self) -> None:
        self._reading = False
        try:
            self._writer.learn(*self._end.words())
        except RemoteProtocolError as error:  # whoever polled is not the one to tell
            self._fault = self._fault or error

    def _has_space(self) -> bool:
        return self._writer.fits(self._refused) and self._end.room(1)

    def arm(self, *, space: bool = False) -> bool:
        # Whoever answers may be about to run: what is owed then goes with the answer.
        if self._writer.owes and self._waits < WAITS_MAX:
            self._waits += 1
            return False
        return super().arm(space=space)

    def _settle(self) -> bool:
        if self._closed or self._end.broken or not self._writer.owes:
            return True
        if not self._writer.fits(None) or not self._post(None, None, False):
            return False
        self.counters.notices += 1
        return True

    def _unsent(self) -> bool:
        return False

    def _post_nothing(self, flags: int) -> None:
        self.counters.posts += 1
        self._end.post_nothing(self._ring.address, self._ring.rkey, flags)

    @property
    def asked(self) -> bool:
        """Take rows, and tell whether one has come."""
        self._end.poll()
        self._look()
        return self._writer.rows > 0

    # ---- membership and end ---------------------------------------------------------------------

    def attach(self, poller: Any, session: Any) -> None:
        super().attach(poller, session)
        if not self.in_memory:
            return
        self._in_room = self._room.enter(poller, self._place, session)
        if not self._in_room:
            poller.add_spot(self._flag, session)
        if self.flagged:  # before there was a session: let the next look find it again
            self.flagged = False
            self._room.set_again(self._place)

    def detach(self) -> None:
        if self._poller is not None and self.in_memory:
            if self._in_room:
                self._room.leave(self._place)
            else:
                self._poller.remove_spot(self._flag)
        super().detach()

    def _release(self) -> None:
        self._end.close()
        rows = [self._row] if self._old is None else [self._row, self._old[1]]
        for memory in rows:
            memory.close()


def row_bytes_for(segment_bytes: int) -> int:
    """Return the row that a frame of so many payload bytes needs."""
    return segment_bytes + ROW_OVERHEAD + HEADER_BYTES
