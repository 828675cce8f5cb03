"""The client's end of a mailbox: it writes rows and flags, and polls the ring of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import native
from . import verbs
from ._channel import FLAGS_IMM, MailboxChannel
from ._end import End, Memory, Mirror
from ._mailbox import (
    HEADER_BYTES,
    ROW_OVERHEAD,
    NewRow,
    RingReader,
    RowSender,
    parse_message,
)

if TYPE_CHECKING:
    from .._fast import Spot

RECEIVES = 128
_SPOT_RING = 1


class MailboxClient(MailboxChannel):
    """See the module's docstring."""

    def __init__(self, end: End, ring_bytes: int) -> None:
        super().__init__(end, RECEIVES)
        self._ring = Mirror(ring_bytes)
        end.keep(self._ring.close)
        self._words = Memory(16)
        self._receives_word = self._words.view[8:16].cast("Q")
        end.keep(self._receives_word.release)
        end.keep(self._words.close)
        write = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE
        # Both of the mappings: a message may begin in one and end in the other.
        self.ring_region = end.register(self._ring.address, 2 * ring_bytes, write, self._ring)
        self.words_region = end.register(
            self._words.address, 16, verbs.LOCAL_WRITE | verbs.REMOTE_READ, self._words
        )
        self._spot: Spot = native.Spot(_SPOT_RING, self._ring.address, ring_bytes, ring_bytes // 4)
        self._reader = RingReader(ring_bytes, RECEIVES)
        self._messages = 0
        self._final = False

    def connect(
        self, mode: str, remote: verbs.QueuePairAddress, row: NewRow, flag: tuple[int, int]
    ) -> None:
        """Connect to a server's row and flag."""
        self._sender = RowSender(row.bytes)
        self._flag_address, self._flag_key = flag
        self._begin(mode, remote)
        self._publish()
        self._reader.told()
        self._prepare(row)

    def limit_rows(self, row_bytes_max: int) -> None:
        """Note the longest row that the server gives."""
        self._row_bytes_max = row_bytes_max
        self.frame_limit = row_bytes_max - ROW_OVERHEAD - HEADER_BYTES

    def _prepare(self, row: NewRow) -> None:
        """Prepare the requests for a row: one pair for what is inline, one for the rest."""
        self._row = row
        end = self._end
        pair = end.pair
        opcode = verbs.OP_WRITE if self.in_memory else verbs.OP_WRITE_WITH_IMM
        self._inline = pair.prepare(
            opcode,
            end.scratch,
            address=end.inline_source,
            remote_address=row.address,
            rkey=row.rkey,
        )
        self._staged = pair.prepare(opcode, end.staging, remote_address=row.address, rkey=row.rkey)
        self._inline_pair = self._staged_pair = None
        if self.in_memory:
            self._flag = pair.prepare(
                verbs.OP_WRITE_WITH_IMM if self.mode == FLAGS_IMM else verbs.OP_WRITE,
                end.scratch,
                address=end.flag_source,
                remote_address=self._flag_address,
                rkey=self._flag_key,
            )
            self._inline_pair = pair.prepare_pair(self._inline, self._flag)
            self._staged_pair = pair.prepare_pair(self._staged, self._flag)

    # ---- sending --------------------------------------------------------------------------------

    def _accept(self, frame: tuple[int, int, int, memoryview], size: int) -> bool:
        sender = self._sender
        if not sender.fits(size):
            needed = size + ROW_OVERHEAD + HEADER_BYTES
            if needed > sender.row_bytes and not sender.wanted_bytes:
                sender.want(min(self._row_bytes_max, max(needed, 2 * sender.row_bytes)))
                self.counters.resizes += 1
            self._end.poll()
            self._pump(idle=bool(sender.wanted_bytes) and needed > sender.row_bytes)
            if not sender.fits(size):
                return False
        kind, flags, id, payload = frame
        sender.add(kind, flags, id, payload)
        self._final = self._final or self._is_final(kind)
        if sender.free:
            self._post_row()
        return True

    def _pump(self, *, idle: bool = False) -> None:
        """Send what waits for the row, or even an empty row, if the row is free."""
        if self._sender.free and (self._sender.waiting or idle):
            self._post_row()

    def _post_row(self) -> bool:
        """Write the row and set the flag; False when there is no room for that now."""
        end, sender, reader = self._end, self._sender, self._reader
        count = 2 if self.in_memory else 1
        if end.prepare_staging(sender.length):
            self._prepare(self._row)
        address = end.begin(sender.length, count)
        if address is None:
            return False
        self._publish()
        data = sender.pack(reader.read, reader.receives)
        reader.told()
        last = end.fill(address, data, count, final=self._final)
        self._final = False
        row, pair = self._inline, self._inline_pair
        if address:
            row, pair = self._staged, self._staged_pair
            row.place(address, self._row.address)
        inline = 0 if address else verbs.INLINE
        if pair is not None:
            pair.post(len(data), inline, last | verbs.INLINE)
        else:
            row.post(len(data), last | inline)
        return True

    def _post_nothing(self, flags: int) -> None:
        self.counters.posts += 1
        if self.in_memory:
            self._inline.post(0, flags)
        else:
            self._end.post_nothing(self._row.address, self._row.rkey, flags)

    def send_empty(self) -> None:
        """Write a row without frames: the server will say that it has taken it."""
        self._post_row()

    @property
    def answered(self) -> bool:
        """Tell whether the server has taken all rows."""
        self._end.poll()
        self._look()
        return self._sender.free

    def _settle(self) -> bool:
        self._pump(idle=self._reader.due)
        return True

    def _unsent(self) -> bool:
        return self._sender.waiting

    def _has_space(self) -> bool:
        return self._sender.free and self._end.room(2)

    # ---- receiving ------------------------------------------------------------------------------

    def _has_arrived(self) -> bool:
        if self.in_memory:
            return self._spot.poll()
        if self._end.arrived == self._messages:
            self._end.poll()
        return self._end.arrived > self._messages

    def _take(self) -> bytes | None:
        if self.in_memory:
            return self._spot.take(False)
        return self._spot.take(True) if self._has_arrived() else None

    def _advance(self) -> None:
        took = False
        while (data := self._take()) is not None:
            took = True
            self._messages += 1
            message = parse_message(data, self._receive_limit)
            self._sender.note_taken(message.rows)
            if message.row is not None:
                self._sender.note_row(message.row)
                self._prepare(message.row)
            if self.with_imm and self._messages % 16 == 0:
                self._end.poll()
                self._repost()
            if message.frames:
                self._frames.extend(message.frames)
                if len(message.frames) > 1 and self._session is not None:
                    self._session.hub.touch(self._session)  # no memory says that one is still here
                break
        if took:
            self._reader.read = self._spot.read
            self._publish()
            self._pump(idle=self._reader.due)

    def _publish(self) -> None:
        """Let the server READ how far this is."""
        self._reader.receives = self._receives_word[0] = self._end.posted_receives
        self._spot.publish(self._words.address)

    # ---- membership and end ---------------------------------------------------------------------

    def attach(self, poller: Any, session: Any) -> None:
        super().attach(poller, session)
        if self.in_memory:
            poller.add_spot(self._spot, session)

    def detach(self) -> None:
        if self._poller is not None and self.in_memory:
            self._poller.remove_spot(self._spot)
        super().detach()

    def on_ring(self) -> tuple[int, int, int]:
        """Return the ring's address, key and size, for the server."""
        ring = self.ring_region
        return ring.address, ring.rkey, self._ring.size
