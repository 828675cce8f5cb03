"""The frame header, the same on every transport, and its checks.

    offset  0          4      5       6          8                    16
            +----------+------+-------+----------+--------------------+---------
            | size u32 | kind | flags | reserved | id u64             | payload
            +----------+------+-------+----------+--------------------+---------

All little-endian.  `size` counts the payload alone.  `reserved` carries the sender's CPU number
plus one on shared memory and is zero elsewhere.  A message longer than a segment travels as
several frames of one id, all but the last with `MORE` (the CONT and END of Catfish, III-A).

Who numbers what: the originator of a DATA or REQUEST message gives it an id from its own
counter; a RESPONSE, ERROR or CANCEL names the request's id.  Because both ends count for
themselves, CREDIT says with `FOR_RESPONSE` whose counter its id belongs to.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from ._errors import RemoteProtocolError

HEADER: Final = struct.Struct("<IBBHQ")
HEADER_BYTES: Final = 16
ID_MAX: Final = (1 << 64) - 1
DEADLINE: Final = struct.Struct("<I")
DEADLINE_US_MAX: Final = 0xFFFF_FFFF
COUNTER: Final = struct.Struct("<Q")

ERROR_TEXT_MAX: Final = 4096
"""Longest remote error type or message in bytes; longer ones are cut by the sender."""


class Kind(IntEnum):
    """What a frame is."""

    DATA = 1
    """A message for `receive`."""
    REQUEST = 2
    """With flag DEADLINE (first segment only) it begins with the remaining microseconds (u32)."""
    RESPONSE = 3
    ERROR = 4
    """The request failed: u16 length, type, message (UTF-8); id 0: the connection ends so."""
    CANCEL = 5
    """The requester lost interest; the answer (any) is still owed."""
    CREDIT = 6
    """u64: how many bytes of message `id` may be sent in all; id 0: of DATA in all."""
    HEARTBEAT = 7
    """u64 sequence number, u32 busy share in millionths."""
    CLOSE = 8
    """The sender will send nothing more; with MORE it still receives (half closed)."""
    ABORT = 9
    """The sender gave up message `id` in the middle; forget its segments."""


class Flag(IntFlag):
    """Bits of the header's flags."""

    MORE = 1
    DEADLINE = 2
    FOR_RESPONSE = 4


_FLAGS_ALLOWED: Final = {
    Kind.DATA: Flag.MORE,
    Kind.REQUEST: Flag.MORE | Flag.DEADLINE,
    Kind.RESPONSE: Flag.MORE,
    Kind.ERROR: Flag(0),
    Kind.CANCEL: Flag(0),
    Kind.CREDIT: Flag.FOR_RESPONSE,
    Kind.HEARTBEAT: Flag(0),
    Kind.CLOSE: Flag.MORE,
    Kind.ABORT: Flag(0),
}
_SIZES_EXACT: Final = {
    Kind.CANCEL: 0,
    Kind.CREDIT: 8,
    Kind.HEARTBEAT: 12,
    Kind.CLOSE: 0,
    Kind.ABORT: 0,
}


class Header(NamedTuple):
    """A frame header that has been checked."""

    size_bytes: int
    kind: Kind
    flags: Flag
    id: int


def pack_header(size_bytes: int, kind: int, flags: int, id: int) -> bytes:
    """Encode a header for a stream transport."""
    return HEADER.pack(size_bytes, kind, flags, 0, id)


def parse_header(data: bytes | bytearray | memoryview, offset: int, payload_limit: int) -> Header:
    """Decode and check the header at `offset`; raise `RemoteProtocolError` for a bad one."""
    size, kind, flags, reserved, id = HEADER.unpack_from(data, offset)
    if reserved != 0:
        raise RemoteProtocolError(f"the peer sent a frame with reserved bits 0x{reserved:04x}")
    check_header(size, kind, flags, payload_limit)
    return Header(size, Kind(kind), Flag(flags), id)


def check_header(size_bytes: int, kind: int, flags: int, payload_limit: int) -> None:
    """Raise `RemoteProtocolError` unless this header is one that a sound peer may send."""
    allowed = _FLAGS_ALLOWED.get(kind)  # type: ignore[call-overload]
    if allowed is None:
        raise RemoteProtocolError(f"the peer sent a frame of unknown kind {kind}")
    if flags & ~int(allowed):  # of a Flag, ~ keeps the known bits alone
        raise RemoteProtocolError(
            f"the peer sent a {Kind(kind).name} frame with flags 0x{flags:02x}, "
            f"of which 0x{flags & ~int(allowed):02x} mean nothing there"
        )
    if size_bytes > payload_limit:
        raise RemoteProtocolError(
            f"the peer sent a frame of {size_bytes} bytes where {payload_limit} were agreed"
        )
    exact = _SIZES_EXACT.get(kind)  # type: ignore[call-overload]
    if exact is not None and size_bytes != exact:
        raise RemoteProtocolError(
            f"the peer sent a {Kind(kind).name} frame of {size_bytes} bytes instead of {exact}"
        )
    if kind == Kind.REQUEST and flags & Flag.DEADLINE and size_bytes < DEADLINE.size:
        raise RemoteProtocolError("the peer sent a request too short for its deadline")


def pack_error(type_name: str, message: str, room_bytes: int = 2 + 2 * ERROR_TEXT_MAX) -> bytes:
    """Encode the payload of an ERROR frame, cutting what is too long or does not fit."""
    name = type_name.encode("utf-8", "replace")[: min(ERROR_TEXT_MAX, room_bytes // 2)]
    text = message.encode("utf-8", "replace")[: min(ERROR_TEXT_MAX, room_bytes - 2 - len(name))]
    return len(name).to_bytes(2, "little") + name + text


def parse_error(payload: bytes) -> tuple[str, str]:
    """Decode an ERROR frame into the remote type's name and its message."""
    length = int.from_bytes(payload[:2], "little")
    if len(payload) < 2 + length or length > ERROR_TEXT_MAX:
        raise RemoteProtocolError("the peer sent an ERROR frame that is too short for its type")
    if len(payload) > 2 + length + ERROR_TEXT_MAX:
        raise RemoteProtocolError("the peer sent an ERROR frame with too long a message")
    return (
        payload[2 : 2 + length].decode("utf-8", "replace"),
        payload[2 + length :].decode("utf-8", "replace"),
    )
