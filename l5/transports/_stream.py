"""Frames over a non-blocking stream socket: what tcp and unix connections become.

    receive buffer   | consumed |  frame  |  frame  |  frame, incom|   room    |
                                ^start                              ^end        ^capacity

One read takes in as many frames as there are; only then are they handed out, one a call, without
another system call.  A read that came back short has emptied the socket, so the call after the
last frame answers "none" without asking again: descriptors are level-triggered, whatever arrives
later wakes the owner.

Sending never queues more than the rest of one frame, so a peer that does not read costs at most
that.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from .. import native
from .._errors import MessageTooLarge, RemoteProtocolError
from .._frames import DEADLINE, HEADER, HEADER_BYTES, Kind, check_header, parse_header
from ..abc import Channel, Frame
from ._parting import part, resets

if TYPE_CHECKING:
    from .._fast import Lane
    from ..abc import Buffer
    from ._tls import TLSSocket

__all__ = ["StreamChannel", "TLSChannel"]

_BUFFER_BYTES: Final = 16 * 1024
"""What an idle connection holds; it grows to the agreed limit with the first larger frame."""

_JOIN_BYTES_MAX: Final = 16 * 1024
"""Up to here one copied buffer is cheaper to send than a vector of two."""

_NO_SIGNAL: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)

# The header once more, with kind and flags as one number, so that one look-up checks both.
_FAST: Final = struct.Struct("<IHHQ")
_LARGEST: Final = 0xFFFFFFFF


def _least_sizes() -> dict[int, int]:
    """Map kind and flags to the payload size from which on `check_header` never objects.

    Kinds with one exact size are left to `parse_header`.
    """
    least: dict[int, int] = {}
    for kind in Kind:
        for flags in range(256):
            try:
                check_header(_LARGEST, kind, flags, _LARGEST)
            except RemoteProtocolError:
                continue
            try:
                check_header(0, kind, flags, _LARGEST)
                least[kind | flags << 8] = 0
            except RemoteProtocolError:
                least[kind | flags << 8] = DEADLINE.size
    return least


_LEAST_SIZE: Final = _least_sizes()

_new_tuple: Any = cast("Any", tuple).__new__  # a third of the time of calling the NamedTuple
_pack = HEADER.pack
_unpack = _FAST.unpack_from
_least_size = _LEAST_SIZE.get


class StreamChannel(Channel):
    """A frame channel over one non-blocking stream socket, which it owns.

    Whenever `try_send` answers False, `wants_write` is True: wait until the descriptor is
    writable, call `flush`, try again.
    """

    def __init__(
        self, sock: socket.socket, transport: str, *, send_limit: int, receive_limit: int
    ) -> None:
        self.transport = transport
        self._socket = sock
        self._send = sock.send
        self._recv_into = sock.recv_into
        self._send_limit = send_limit
        self._receive_limit = receive_limit
        self._closed = False
        self._rest: memoryview | None = None
        self._carried: bytes | None = None
        self.carried_sent: int = 0
        """Frames that went in front of others, without those of the lane."""
        self._failure = 0
        self._lane: Lane | None = None
        self._start = self._end = 0
        self._drained = False
        self._capacity = min(_BUFFER_BYTES, receive_limit + HEADER_BYTES)
        self._buffer = bytearray(self._capacity)
        self._view = memoryview(self._buffer)

    # -- sending

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        size = len(payload) if type(payload) is bytes else memoryview(payload).nbytes
        if size > self._send_limit:
            raise MessageTooLarge(size, self._send_limit)
        if self._rest is not None and not self.flush():
            return False
        head = _pack(size, kind, flags, 0, id)
        if self._carried is not None:
            head = self._take_carried(kind) + head
        if size > _JOIN_BYTES_MAX:
            return self._send_vector(head, memoryview(payload), size)
        data = head + payload
        # step 21 (both, socket): a frame is to be sent
        try:
            sent = self._send(data, _NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        # step 22 (both, socket): a frame is sent, or some of it
        if sent != len(data):
            self.keep_rest(memoryview(data)[sent:])
        return True

    def carry(self, kind: int, flags: int, id: int, payload: bytes) -> bool:
        """See `Channel.carry`; False also when the one before has not gone since."""
        frame = _pack(len(payload), kind, flags, 0, id) + payload
        alone = self._carried is None if self._lane is None else self._lane.carry(frame)
        self._carried = frame
        return alone

    def _take_carried(self, kind: int) -> bytes:
        """Return what goes in front of a frame: of two of one kind the later one is enough."""
        frame, self._carried = self._carried, None
        if self._lane is not None:
            frame = self._lane.take_carried()  # it may have sent it
        if not frame or frame[4] == kind:
            return b""
        self.carried_sent += 1
        return frame

    def keep_rest(self, rest: Buffer) -> None:
        """Send these bytes, the rest of a frame, before anything else."""
        self._rest = memoryview(rest)
        if self._lane is not None:
            self._lane.unsent = 1

    def _send_vector(self, header: bytes, payload: memoryview, size: int) -> bool:
        try:
            sent = self._socket.sendmsg((header, payload), (), _NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        if sent < len(header):
            self.keep_rest(b"".join((header[sent:], payload)))
        elif sent != size + len(header):
            rest = payload.cast("B")[sent - len(header) :]
            own = type(payload.obj) is bytes and len(payload.obj) == size  # no more than a frame
            self.keep_rest(rest if own else bytes(rest))  # the payload is the caller's again
        return True

    @property
    def wants_write(self) -> bool:
        return self._rest is not None

    def flush(self) -> bool:
        rest = self._rest
        if rest is None:
            return True
        try:
            sent = self._send(rest, _NO_SIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken() from error
        if sent != len(rest):
            self._rest = rest[sent:]
            return False
        self._rest = None
        if self._lane is not None:
            self._lane.unsent = 0
        return True

    # -- receiving

    def try_receive(self) -> Frame | None:
        while True:
            start = self._start
            available = self._end - start - HEADER_BYTES
            size = 0
            if available >= 0:
                size, key, reserved, id = _unpack(self._buffer, start)
                least = _least_size(key)
                if least is None or reserved or not least <= size <= self._receive_limit:
                    parse_header(self._buffer, start, self._receive_limit)
                if size <= available:
                    begin = start + HEADER_BYTES
                    stop = begin + size
                    if size == available:
                        self._start = self._end = 0
                        if self._lane is not None:
                            self._lane.held = 0
                    else:
                        self._start = stop
                    payload = self._view[begin:stop].tobytes()
                    # step 24 (both, socket): a frame is received
                    return _new_tuple(Frame, (key & 0xFF, key >> 8, id, payload))
            if self._drained:
                self._drained = False
                return None
            if not self._fill(size + HEADER_BYTES):
                return None

    def _fill(self, needed: int) -> bool:
        """Read once into the buffer, with room for `needed` bytes; False if nothing came."""
        if self._lane is not None and self._take_from(self._lane):
            return True
        end = self._end
        if end:
            room = self._make_room(needed)
            end = self._end
        else:
            room = self._view
        try:
            count = self._recv_into(room)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken() from error
        if count == 0:
            raise self._ended()
        # step 23 (both, socket): something is received, and not looked at
        self._end = end + count
        self._drained = end + count != self._capacity
        if self._lane is not None:
            self._lane.held = 1
        return True

    # -- the lane

    def make_lane(self) -> Lane | None:
        """Return the short way over this socket, which is used beside this channel from now on."""
        if native.available and type(self) is StreamChannel and not self._closed:
            self._lane = native.Lane(self.fileno(), self._send_limit, self._receive_limit)
            self._lane.held = int(self._end != self._start)
            self._lane.unsent = int(self._rest is not None)
        return self._lane

    def feed(self, data: bytes, error: int) -> None:
        """(While the buffer is empty) take what the lane read, or the error that it met."""
        size = len(data)
        self._view[:size] = data
        self._start, self._end = 0, size
        self._drained, self._failure = False, error

    def _take_from(self, lane: Lane) -> bool:
        """Do as if this had been read here: what the lane has not handled, or its error."""
        if self._failure:
            raise self._broken() from OSError(self._failure, os.strerror(self._failure))
        rest = lane.take_rest() if lane.has_rest else None
        if rest is not None:
            self.feed(rest, 0)
            lane.held = 1
        return rest is not None

    def _make_room(self, needed: int) -> memoryview:
        """Move what is not consumed to the front, into a larger buffer if it has to be."""
        start, end = self._start, self._end
        if needed > self._capacity:
            self._capacity = self._receive_limit + HEADER_BYTES
            buffer = bytearray(self._capacity)
            buffer[: end - start] = self._view[start:end]
            self._buffer, self._view = buffer, memoryview(buffer)
        elif start:
            # Overlapping ranges of one buffer: memoryview assignment moves as memmove does.
            self._view[: end - start] = self._view[start:end]
        self._start, self._end = 0, end - start
        return self._view[self._end :]

    def _ended(self) -> Exception:
        if self._end != self._start:  # killed, most likely, while it wrote: no lie of the peer's
            return anyio.BrokenResourceError("the peer went in the middle of a frame")
        return anyio.EndOfStream()

    def _broken(self) -> Exception:
        if self._closed:
            return anyio.ClosedResourceError()
        return anyio.BrokenResourceError()

    # -- polling

    def poll(self) -> bool:
        """Tell whether a whole frame (or a bad header) is buffered; never asks the socket."""
        available = self._end - self._start - HEADER_BYTES
        if available < 0:
            return self._lane is not None and (self._failure != 0 or self._lane.has_rest)
        size = HEADER.unpack_from(self._buffer, self._start)[0]
        return size <= available or size > self._receive_limit

    def arm(self, *, space: bool = False) -> bool:
        # The socket is level-triggered, so agreeing takes nothing.
        return not self.poll() and not (space and self._rest is None)

    def disarm(self) -> None:
        """Do nothing: see `arm`."""

    def on_event(self) -> None:
        self._drained = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def part(self) -> bool:
        return not resets(self._socket) or part(self._socket)

    def close(self) -> None:
        if not self._closed:
            self.part()
        # step 53 (both, socket): nothing more is sent, and the socket is open
        self.forget()

    def forget(self) -> None:
        self._closed = True
        self._rest = None
        if self._lane is not None:
            self._lane.close()
        self._socket.close()


class TLSChannel(StreamChannel):
    """A frame channel over TLS; bytes that were decrypted or not yet decrypted count as here."""

    def __init__(
        self, tls: TLSSocket, transport: str, *, send_limit: int, receive_limit: int
    ) -> None:
        super().__init__(tls.socket, transport, send_limit=send_limit, receive_limit=receive_limit)
        self._tls = tls
        self._parted = False
        self._send = tls.send
        self._recv_into = tls.recv_into

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        # Ciphertext that waits is the rest of a frame, too.
        if self._tls.wants_write and not self.flush():
            return False
        return super().try_send(kind, flags, id, payload)

    def _send_vector(self, header: bytes, payload: memoryview, size: int) -> bool:
        # Records are encrypted from one buffer; a whole frame is always taken.
        data = b"".join((header, payload))
        try:
            self._tls.send(data)
        except OSError as error:
            raise self._broken() from error
        return True

    @property
    def wants_write(self) -> bool:
        return self._tls.wants_write

    def flush(self) -> bool:
        try:
            return self._tls.flush()
        except OSError as error:
            raise self._broken() from error

    def _fill(self, needed: int) -> bool:
        filled = super()._fill(needed)
        self._drained = False  # a short read ends with a record, not with what the socket has
        return filled

    def arm(self, *, space: bool = False) -> bool:
        if self._tls.buffered or self.poll():
            return False
        return not (space and not self._tls.wants_write)

    def part(self) -> bool:
        if not self._parted:
            self._parted = True
            self._tls.say_goodbye()
        return super().part()
