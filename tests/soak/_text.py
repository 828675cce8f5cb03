"""What the messages of a soak are made of, and how their receiver judges them.

All processes share one text: random bytes, made from the seed. A message's body is a piece of it
and its header says which, so the receiver compares every byte, which finds more than a digest.
The header has a check sum of its own.

An attempt to send may be cancelled, and then all or nothing was sent: the sender does not know
which. So attempts are numbered, and a message also carries the number of the last one that was
sent for sure: a receiver that has not got that one has lost it, one that gets a number again or
a lower one got it twice or out of order.
"""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from pathlib import Path

import attrs

BODY_MAX = 4 << 20
TEXT_BYTES = 2 * BODY_MAX
HEADER = struct.Struct("<4sBBHQ6I")
CHECK = struct.Struct("<I")
HEAD_BYTES = HEADER.size + CHECK.size
MAGIC = b"soak"

DATA, ASK, ANSWER = 1, 2, 3
LAST, FAIL, SLOW = 1, 2, 4


class Wrong(Exception):
    """A promise was not kept: what the soak looks for."""


@attrs.frozen
class Head:
    """A message's header."""

    kind: int
    stream: int
    number: int
    sure: int = 0
    offset: int = 0
    size: int = 0
    reply_offset: int = 0
    reply_size: int = 0
    flags: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        data = HEADER.pack(
            *(MAGIC, self.kind, self.flags, 0, self.stream, self.number, self.sure),
            *(self.offset, self.size, self.reply_offset, self.reply_size),
        )
        return data + CHECK.pack(zlib.crc32(data))


class Text:
    """The shared text."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), TEXT_BYTES, prot=mmap.PROT_READ)
        self.view = memoryview(self._map)

    @staticmethod
    def write(path: Path, seed: int) -> None:
        """Make the text of a soak."""
        path.write_bytes(random.Random(seed).randbytes(TEXT_BYTES))

    def body(self, head: Head) -> memoryview:
        """Return the body that belongs to a header."""
        return self.view[head.offset : head.offset + head.size]

    def message(self, head: Head) -> bytes:
        """Return a whole message."""
        return b"".join((head.pack(), self.body(head)))

    def check(self, message: bytes | memoryview, kind: int) -> Head:
        """Return a message's header; raise `Wrong` unless every byte is what it should be."""
        if len(message) < HEAD_BYTES:
            raise Wrong(f"a message of {len(message)} bytes has lost its header")
        packed = bytes(message[: HEADER.size])
        (sum_,) = CHECK.unpack(bytes(message[HEADER.size : HEAD_BYTES]))
        magic, got, flags, _, stream, number, sure, *rest = HEADER.unpack(packed)
        head = Head(got, stream, number, sure, *rest, flags)
        if magic != MAGIC or zlib.crc32(packed) != sum_ or got != kind:
            raise Wrong(f"a header is corrupt: {packed!r}")
        body = memoryview(message)[HEAD_BYTES:]
        if len(body) != head.size:
            raise Wrong(f"{head} came with {len(body)} bytes of body instead of {head.size}")
        if body != self.body(head):
            expected = self.body(head)
            at = next(i for i in range(head.size) if body[i] != expected[i])
            raise Wrong(f"{head} is corrupt from byte {at} of its body on")
        return head


def random_size(rng: random.Random) -> int:
    """Return a body's size, 0 to 4 MiB: every order of magnitude is as likely as every other."""
    chance = rng.random()
    if chance < 0.03:
        return 0
    if chance > 0.997:
        return BODY_MAX
    return int(BODY_MAX ** rng.random())


def random_piece(rng: random.Random) -> tuple[int, int]:
    """Return offset and size of a piece of the text."""
    size = random_size(rng)
    return rng.randrange(TEXT_BYTES - size), size


@attrs.define(eq=False)
class Outgoing:
    """The numbers of one direction, at its sender."""

    stream: int
    tried: int = 0
    sure: int = 0

    def next(self, rng: random.Random, flags: int = 0) -> Head:
        """Return the header of the next attempt."""
        self.tried += 1
        offset, size = random_piece(rng)
        return Head(DATA, self.stream, self.tried, self.sure, offset, size, flags=flags)

    def sent(self, head: Head) -> None:
        """Note that an attempt returned without being cancelled."""
        self.sure = head.number


@attrs.define(eq=False)
class Incoming:
    """The numbers of one direction, at its receiver."""

    stream: int
    got: int = 0

    def take(self, head: Head) -> None:
        """Note a message; raise `Wrong` when one was lost, came twice or out of order."""
        if head.stream != self.stream:
            raise Wrong(f"{head} came on the connection of stream {self.stream:#x}")
        if head.number <= self.got:
            raise Wrong(f"{head} came twice or out of order: {self.got} was there before")
        if head.sure > self.got:
            raise Wrong(
                f"{head}: message {head.sure} was sent, and the last that came is {self.got}"
            )
        self.got = head.number
