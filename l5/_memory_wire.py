"""Operations on remote memory as requests of a memory link.  Pure: bytes in, values out.

A request is ``operation u8 | handle u32 | ...``, little-endian throughout:

    OPEN    name (UTF-8)                                  -> Grant (MessagePack)
    CLOSE                                                 -> empty
    READ    count x (offset u64 | length u32)             -> the data, one after the other
    WRITE   offset u64 | data                             -> empty
    SWAP    offset u64 | expected u64 | desired u64       -> u64, what was there
    ADD     offset u64 | value u64                        -> u64, what was there

A handle is the client's choice: it can close what it has opened without having heard the answer.
What is refused is answered by an error of type `REFUSED`, or `GONE` if nothing else can follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, TypeVar

import attrs
import msgspec
from msgspec import Meta

from ._errors import RemoteAccessError, RemoteProtocolError
from ._hello import printable
from ._options import Options

REFUSED: Final = "RemoteAccessError"
GONE: Final = "RegionGone"
NAME_MAX: Final = 64
SPANS_MAX: Final = 1024
"""Parts of one READ: with this many the owner's loop is held for a fraction of a millisecond."""
DATA_BYTES: Final = 64 << 10
"""Most bytes that one READ returns or one WRITE brings; what is longer is cut up."""
WORD_MAX: Final = (1 << 64) - 1
OFFSET_MAX: Final = 1 << 40

HEAD: Final = struct.Struct("<BI")
SPAN: Final = struct.Struct("<QI")
OFFSET: Final = struct.Struct("<Q")
WORD: Final = struct.Struct("<Q")
SWAP: Final = struct.Struct("<QQQ")
ADD: Final = struct.Struct("<QQ")
MEMORY_IN_FLIGHT: Final = 64
FRAME_BYTES: Final = DATA_BYTES + HEAD.size + OFFSET.size
"""The longest request or answer."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


def memory_options(options: AnyOptions) -> AnyOptions:
    """Return the options of a connection's memory link: short messages, each in one frame."""
    return attrs.evolve(
        options,
        ring_bytes=1 << 20,
        segment_bytes=2 * DATA_BYTES,
        max_message_bytes=2 * DATA_BYTES,
        credit_bytes=2 * DATA_BYTES,
        data_window_bytes=2 * DATA_BYTES,
        in_flight_max=MEMORY_IN_FLIGHT,
    )


class RegionGone(RemoteAccessError):
    """The owner has revoked the region: nothing that is asked of it will ever be done."""


class Operation(IntEnum):
    """What a request asks for."""

    OPEN = 1
    CLOSE = 2
    READ = 3
    WRITE = 4
    SWAP = 5
    ADD = 6


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to OPEN."""

    size_bytes: Annotated[int, Meta(ge=1, le=OFFSET_MAX)]
    writable: bool
    atomic: bool
    reply_bytes: Annotated[int, Meta(ge=64, le=DATA_BYTES)]
    params: Annotated[dict[str, Any], Meta(max_length=16)] = {}
    emulated: Annotated[str, Meta(max_length=1024)] = ""
    """Why operations have to be asked for; empty if the channel gives access."""


@attrs.frozen
class Asked:
    """A request, taken apart; `body` is what follows its handle."""

    operation: Operation
    handle: int
    body: memoryview

    def spans(self, size_bytes: int, reply_bytes: int) -> list[tuple[int, int]]:
        """(READ) return what is to be read; `RemoteAccessError` unless all of it may be."""
        if len(self.body) % SPAN.size or len(self.body) > SPANS_MAX * SPAN.size:
            raise RemoteAccessError("a READ that is no list of spans, or too long a one")
        spans = [(offset, length) for offset, length in SPAN.iter_unpack(self.body)]
        if any(offset + length > size_bytes for offset, length in spans):
            raise RemoteAccessError(f"a READ beyond the region's {size_bytes} bytes")
        if sum(length for _, length in spans) > reply_bytes:
            raise RemoteAccessError(f"a READ of more than {reply_bytes} bytes at once")
        return spans

    def write(self) -> tuple[int, memoryview]:
        """(WRITE) return the offset and the data."""
        if len(self.body) < OFFSET.size:
            raise RemoteAccessError("a WRITE without an offset")
        return OFFSET.unpack_from(self.body)[0], self.body[OFFSET.size :]

    def words(self, layout: struct.Struct) -> tuple[int, ...]:
        """(SWAP, ADD) return the offset and the words."""
        if len(self.body) != layout.size:
            raise RemoteAccessError(f"a {self.operation.name} of {len(self.body)} bytes")
        return layout.unpack(self.body)


def parse(payload: bytes) -> Asked:
    """Take a request apart; `RemoteAccessError` if it is none."""
    try:
        number, handle = HEAD.unpack_from(payload)
        return Asked(Operation(number), handle, memoryview(payload)[HEAD.size :])
    except (struct.error, ValueError):
        raise RemoteAccessError("this is no operation on remote memory") from None


def pack_open(handle: int, name: str) -> bytes:
    """Ask for a region."""
    return HEAD.pack(Operation.OPEN, handle) + name.encode()


def pack_close(handle: int) -> bytes:
    """Give a region up."""
    return HEAD.pack(Operation.CLOSE, handle)


def pack_read(handle: int, spans: Sequence[tuple[int, int]]) -> bytes:
    """Ask for parts of a region."""
    return HEAD.pack(Operation.READ, handle) + b"".join([SPAN.pack(*span) for span in spans])


def pack_write(handle: int, offset: int, data: bytes | memoryview) -> bytes:
    """Ask for a write."""
    return b"".join((HEAD.pack(Operation.WRITE, handle), OFFSET.pack(offset), data))


def pack_swap(handle: int, offset: int, expected: int, desired: int) -> bytes:
    """Ask for a compare-and-swap."""
    return HEAD.pack(Operation.SWAP, handle) + SWAP.pack(offset, expected, desired)


def pack_add(handle: int, offset: int, value: int) -> bytes:
    """Ask for a fetch-and-add."""
    return HEAD.pack(Operation.ADD, handle) + ADD.pack(offset, value)


def parse_word(payload: bytes) -> int:
    """Read the answer to an atomic operation."""
    if len(payload) != WORD.size:
        raise RemoteProtocolError(f"the owner answered an atomic with {len(payload)} bytes")
    return WORD.unpack(payload)[0]


def check_empty(payload: bytes) -> None:
    """Read the answer to what has none."""
    if payload:
        raise RemoteProtocolError(f"the owner answered with {len(payload)} bytes where none belong")


def check_data(payload: bytes, size_bytes: int) -> bytes:
    """Read the answer to a READ."""
    if len(payload) != size_bytes:
        raise RemoteProtocolError(
            f"the owner answered with {len(payload)} bytes where {size_bytes} were asked for"
        )
    return payload


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Grant)


def pack_grant(grant: Grant) -> bytes:
    """Answer OPEN."""
    return _ENCODER.encode(grant)


def parse_grant(payload: bytes) -> Grant:
    """Read the answer to OPEN."""
    try:
        return _DECODER.decode(payload)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        text = f"the owner's grant is malformed: {printable(str(error))}"
        raise RemoteProtocolError(text) from None


def check_name(name: str) -> str:
    """Return the name of a region if it can be one; else `ValueError` says what can."""
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable():
        raise ValueError(
            f"{printable(name)!r} cannot be the name of a region: it has 1 to {NAME_MAX}"
            " printable characters"
        )
    return name


def cut(span: tuple[int, int], piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a span into pieces; one without bytes is a piece, too."""
    offset, length = span
    yield offset, min(length, piece_bytes)
    for start in range(piece_bytes, length, piece_bytes):
        yield offset + start, min(piece_bytes, length - start)
