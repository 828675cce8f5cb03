"""The mailbox protocol without a device: what is written where, and when there is room for it.

    row (client -> server)        [size u32][read u64][receives u32][wanted u32][frame][frame]...
    message (server -> client)    [size u32][rows u32][extra u32][new row 16]?[frame]...[OK u8]
    frame                         [header 16][payload]

A row is one message of the client's, of as many frames as gathered while the row before it was on
its way: a client alone sends one frame a row, one with many tasks fills them.  A message is one
frame of the server's, and before it perhaps a short one that did not go alone (a heartbeat).  The
row is free again when the server says that it has taken as many `rows` as were sent; every message
says so.

The messages of the server go into a ring of the client's, each at a multiple of 64 bytes.  How far
the client has `read` them, and how many `receives` it has posted for their immediates, every row of
it says, and the two words that the server may READ.  64 bytes of the ring and one receive are kept
for the bare message that frees a row: the client can say nothing before that one is read, so one is
enough and the two directions cannot wait for each other.

Positions and counts grow for ever; counts of 32 bits travel modulo 2**32.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

import attrs

from .._errors import RemoteProtocolError
from .._frames import HEADER, HEADER_BYTES, parse_header

ALIGN: Final = 64
OK: Final = b"\x4f"
_SIZE = struct.Struct("<I")
_ROW_HEAD = struct.Struct("<QII")
_MESSAGE_HEAD = struct.Struct("<II")
_NEW_ROW = struct.Struct("<QII")
WORDS: Final = struct.Struct("<QQ")
"""What the server may READ: how far the client has read, and the receives that it has posted."""

SIZE_BYTES: Final = _SIZE.size
ROW_OVERHEAD: Final = _SIZE.size + _ROW_HEAD.size
"""Bytes of a row that are not frames."""
MESSAGE_OVERHEAD: Final = _SIZE.size + _MESSAGE_HEAD.size + _NEW_ROW.size + HEADER_BYTES + 1
"""Bytes of a message beside its payload, at most."""
NOTICE_BYTES: Final = ALIGN
"""What a message without a frame takes of the ring, with what it carries for others."""
CARRIED_MAX: Final = HEADER_BYTES + 12
"""Bytes of a frame that waits for the next message: the bare one has room for it."""
_MASK: Final = 0xFFFFFFFF
EXTRA_NONE, EXTRA_ROW = 0, 1

Frame = tuple[int, int, int, bytes]
"""Kind, flags, id, payload."""


class NewRow(NamedTuple):
    """Where the client's row is from now on."""

    address: int
    rkey: int
    bytes: int


def padded(payload_bytes: int) -> int:
    """Return what a message with so many bytes between size and OK takes of the ring."""
    return (payload_bytes + SIZE_BYTES + 1 + ALIGN - 1) & ~(ALIGN - 1)


def _ahead(known: int, count: int) -> int:
    """Return the count of which the low 32 bits came, given an earlier one."""
    return known + ((count - known) & _MASK)


# ---- the client's rows -------------------------------------------------------------------------


@attrs.define(eq=False)
class RowSender:
    """(Client) gathers frames, and knows when the row may be written again."""

    row_bytes: int
    sent: int = 0
    """Rows."""
    taken: int = 0
    """Rows that the server has taken."""
    wanted_bytes: int = 0
    """The row that has been asked for; 0: none."""
    _frames: bytearray = attrs.field(factory=bytearray, init=False)

    @property
    def free(self) -> bool:
        """Tell whether the row may be written."""
        return self.sent == self.taken

    @property
    def waiting(self) -> bool:
        """Tell whether frames wait for the row."""
        return bool(self._frames)

    @property
    def length(self) -> int:
        """Return how many bytes the row will have that is sent next."""
        return ROW_OVERHEAD + len(self._frames)

    def fits(self, payload_bytes: int) -> bool:
        """Tell whether a frame can be taken now."""
        return self.length + HEADER_BYTES + payload_bytes <= self.row_bytes

    def add(self, kind: int, flags: int, id: int, payload: bytes | memoryview) -> None:
        """Take a frame that fits."""
        self._frames += HEADER.pack(len(payload), kind, flags, 0, id)
        self._frames += payload

    def want(self, row_bytes: int) -> None:
        """Ask for a row of so many bytes with the next one that is sent."""
        self.wanted_bytes = max(self.wanted_bytes, row_bytes)

    def pack(self, read: int, receives: int) -> bytes:
        """Return what to write into the row, which is busy from now on."""
        head = _ROW_HEAD.pack(read, receives & _MASK, self.wanted_bytes)
        data = b"".join((_SIZE.pack(len(head) + len(self._frames)), head, self._frames))
        self._frames.clear()
        self.sent += 1
        return data

    def note_taken(self, rows: int) -> None:
        """Note what a message of the server's says; `RemoteProtocolError` if that cannot be."""
        taken = _ahead(self.taken, rows)
        if taken > self.sent:
            raise RemoteProtocolError(
                f"the peer has taken {taken} rows where {self.sent} were written"
            )
        self.taken = taken

    def note_row(self, row: NewRow) -> None:
        """Note where the row is from now on; `RemoteProtocolError` if none was asked for."""
        if not self.wanted_bytes or row.bytes < self.row_bytes or row.bytes > self.wanted_bytes:
            raise RemoteProtocolError(
                f"the peer gave a row of {row.bytes} bytes where {self.wanted_bytes} were asked for"
            )
        if row.address + row.bytes > 1 << 64:
            raise RemoteProtocolError(f"the peer gave a row at {row.address:#x}, beyond all memory")
        self.row_bytes = row.bytes
        self.wanted_bytes = 0


class Row(NamedTuple):
    """A row as the server finds it."""

    read: int
    receives: int
    wanted_bytes: int
    frames: deque[Frame]


def row_size(head: bytes | memoryview, row_bytes: int) -> int:
    """(Server) return how many bytes follow a row's size word; bounded before anything is read."""
    size: int = _SIZE.unpack_from(head)[0]
    if not _ROW_HEAD.size <= size <= row_bytes - SIZE_BYTES:
        raise RemoteProtocolError(
            f"the peer set its flag over a row of {size} bytes; {_ROW_HEAD.size} to "
            f"{row_bytes - SIZE_BYTES} are possible"
        )
    return size


def parse_row(data: bytes, payload_limit: int) -> Row:
    """(Server) cut the copy of a row into frames; `RemoteProtocolError` for what is none."""
    read, receives, wanted = _ROW_HEAD.unpack_from(data)
    return Row(read, receives, wanted, _frames(data, _ROW_HEAD.size, payload_limit, "row"))


def _frames(data: bytes, at: int, payload_limit: int, what: str) -> deque[Frame]:
    """Cut into frames what follows a head."""
    frames: deque[Frame] = deque()
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            raise RemoteProtocolError(f"the peer's {what} ends in the middle of a frame's header")
        size, kind, flags, id = parse_header(data, at, payload_limit)
        at += HEADER_BYTES
        if size > len(data) - at:
            raise RemoteProtocolError(f"the peer's {what} ends in the middle of a frame")
        frames.append((int(kind), int(flags), id, data[at : at + size]))
        at += size
    return frames


# ---- the server's messages ---------------------------------------------------------------------


@attrs.define(eq=False)
class RingWriter:
    """(Server) knows where in the client's ring the next message goes, and whether it may."""

    ring_bytes: int
    counts_receives: bool
    """Each message takes a receive of the client's."""
    receives_most: int = 0
    """That the client has posted at once."""
    write: int = 0
    read: int = 0
    """How far the client has read, as far as is known."""
    receives: int = 0
    """That the client has posted, as far as is known."""
    messages: int = 0
    rows: int = 0
    """Taken from the client."""
    rows_told: int = 0
    row: NewRow | None = None
    """To be told with the rows taken."""
    carried: bytes = b""
    """A frame that goes with the next message."""
    asked_at: int = 0
    """How much was written when the client's words were last READ."""

    @property
    def owes(self) -> bool:
        """Tell whether the client does not know yet that its row is free."""
        return self.rows != self.rows_told

    @property
    def free(self) -> int:
        """Bytes that may be written."""
        return self.ring_bytes - (self.write - self.read)

    def message_bytes(self, payload_bytes: int | None) -> int:
        """Return the bytes between size and OK of a message with such a frame, or with none."""
        row = _NEW_ROW.size if self.row is not None else 0
        frame = 0 if payload_bytes is None else HEADER_BYTES + payload_bytes
        return _MESSAGE_HEAD.size + row + len(self.carried) + frame

    def fits(self, payload_bytes: int | None) -> bool:
        """Tell whether a message may be written now; one without a frame may use what is kept."""
        kept = 0 if payload_bytes is None else 1
        needed = padded(self.message_bytes(payload_bytes)) + kept * NOTICE_BYTES
        if self.counts_receives and self.receives - self.messages < 1 + kept:
            return False
        return self.free >= needed

    @property
    def wants_read(self) -> bool:
        """Tell whether to READ the client's words: half of what it gave is used up."""
        short = 2 * self.free < self.ring_bytes
        if self.counts_receives:
            short = short or 2 * (self.receives - self.messages) < self.receives_most
        return short and self.write - self.asked_at >= self.ring_bytes // 8

    def pack(self, frame: tuple[int, int, int, bytes | memoryview] | None) -> tuple[int, bytes]:
        """Return where in the ring a message that fits goes, and its bytes: it is written."""
        extra = b"" if self.row is None else _NEW_ROW.pack(*self.row)
        head = _MESSAGE_HEAD.pack(self.rows & _MASK, EXTRA_ROW if extra else EXTRA_NONE)
        parts: list[bytes | memoryview] = [head, extra, self.carried]
        if frame is not None:
            kind, flags, id, payload = frame
            parts += [HEADER.pack(len(payload), kind, flags, 0, id), payload]
        size = sum(map(len, parts))
        at = self.write % self.ring_bytes
        self.write += padded(size)
        self.messages += 1
        self.rows_told = self.rows
        self.row = None
        self.carried = b""
        return at, b"".join((_SIZE.pack(size), *parts, OK))

    def learn(self, read: int, receives: int) -> None:
        """Note what the client says of itself; `RemoteProtocolError` if that cannot be.

        What a row says may be older than what was READ meanwhile, and the other way round.
        """
        if read > self.write:
            raise RemoteProtocolError(
                f"the peer has read to {read} of a ring that was written to {self.write}"
            )
        posted = (receives - self.receives) & _MASK
        if posted > _MASK // 2:
            posted = 0
        open_now = self.receives + posted - self.messages
        if self.counts_receives and open_now > self.receives_most:
            raise RemoteProtocolError(
                f"the peer has posted {open_now} receives of {self.receives_most}"
            )
        self.read = max(self.read, read)
        self.receives += posted


class Message(NamedTuple):
    """A message as the client finds it."""

    rows: int
    row: NewRow | None
    frames: deque[Frame]


def parse_message(data: bytes, payload_limit: int) -> Message:
    """(Client) read the copy of a message; `RemoteProtocolError` for what is none."""
    if len(data) < _MESSAGE_HEAD.size:
        raise RemoteProtocolError(f"the peer wrote a message of {len(data)} bytes")
    rows, extra = _MESSAGE_HEAD.unpack_from(data)
    at, row = _MESSAGE_HEAD.size, None
    if extra == EXTRA_ROW and len(data) >= at + _NEW_ROW.size:
        row = NewRow(*_NEW_ROW.unpack_from(data, at))
        at += _NEW_ROW.size
    elif extra != EXTRA_NONE:
        raise RemoteProtocolError(f"the peer wrote a message with the extra {extra}")
    return Message(rows, row, _frames(data, at, payload_limit, "message"))


@attrs.define(eq=False)
class RingReader:
    """(Client) knows what the server should be told of the ring, and when."""

    ring_bytes: int
    receives_most: int
    read: int = 0
    receives: int = 0
    """Posted since the beginning."""
    read_told: int = 0
    receives_told: int = 0

    @property
    def due(self) -> bool:
        """Tell whether the server should hear of it even if there is nothing else to say."""
        return (
            2 * (self.read - self.read_told) >= self.ring_bytes
            or 2 * (self.receives - self.receives_told) >= self.receives_most
        )

    def told(self) -> None:
        """Note that a row says how far it is."""
        self.read_told, self.receives_told = self.read, self.receives


# ---- staging -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Arena:
    """Places in registered memory for what is being sent; given back by completions alone.

    A place is free again when `completed` has reached the `posted` of its request.  `short` says
    that the next message might find no room before a completion: then one has to be asked for.
    """

    size: int
    largest: int
    _head: int = attrs.field(default=0, init=False)
    _tail: int = attrs.field(default=0, init=False)
    _used: deque[tuple[int, int]] = attrs.field(factory=deque[tuple[int, int]], init=False)

    def place(self, length: int) -> int | None:
        """Return where `length` bytes may stand, or None for now; `keep` has to follow."""
        length = (length + ALIGN - 1) & ~(ALIGN - 1)
        start = self._head % self.size
        if start + length > self.size:  # not across the end
            start = 0
        begin = self._head + (start - self._head) % self.size
        if begin + length - self._tail > self.size:
            return None
        self._head = begin + length
        return start

    def keep(self, posted: int) -> None:
        """The place given last belongs to the request that made the count `posted`."""
        self._used.append((posted, self._head))

    def release(self, completed: int) -> None:
        """Take back what has been sent."""
        while self._used and self._used[0][0] <= completed:
            self._tail = self._used.popleft()[1]
        if not self._used:
            self._head = self._tail = 0

    @property
    def short(self) -> bool:
        """Tell whether a completion is needed before there surely is room again."""
        return self.size - (self._head - self._tail) < 2 * self.largest
