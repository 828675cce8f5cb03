"""Remote memory at the client: what every kind of region has in common, and the emulated one.

A transport's own kind derives from `BaseRegion` and implements `_fetch`, `_put`, `_swap` and
`_add`, or from `EmulatedRegion` and implements those that it can do better.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from . import _memory_wire as wire
from ._errors import RemoteAccessError, RemoteProtocolError
from ._options import size_text
from .abc import OpenedRegion, RemoteRegion

if TYPE_CHECKING:
    from .abc import Buffer, Span, Take

__all__ = ["READ_BYTES_MAX", "BaseRegion", "EmulatedRegion", "Piece"]

T = TypeVar("T")

READ_BYTES_MAX: Final = 256 << 20
"""Most bytes of one part of a read, and of all of `read_many` together."""
FRAMES_IN_FLIGHT: Final = 4
"""Requests of one emulated operation; each brings as many parts as it can."""
WINDOW_MAX: Final = 65536


@attrs.define(eq=False)
class _Part:
    """One span that somebody wants, and what has come of it."""

    number: int
    offset: int
    length: int
    found: dict[int, bytes] | None = None
    """Of one that is cut up: its pieces, by their offsets."""
    missing_bytes: int = 0


@attrs.define(eq=False)
class Piece:
    """What is read at once: a whole part, or a bit of it."""

    part: _Part
    offset: int
    length: int


class BaseRegion(RemoteRegion):
    """Checks, rights, cutting up and ends; see `l5.abc.RemoteRegion` for the contract."""

    one_sided = False
    piece_bytes: int
    """The longest piece that `_fetch` and `_put` are asked for."""

    def __init__(self, opened: OpenedRegion) -> None:
        self.name = opened.name
        self.size_bytes = opened.size_bytes
        self.writable = opened.writable
        self.atomic = opened.atomic
        self.emulated_because = opened.emulated_because
        self.handle: int = opened.handle
        self.piece_bytes = opened.reply_bytes
        self._link = opened.link
        self._ended: str = ""

    def __repr__(self) -> str:
        kind = "one-sided" if self.one_sided else "emulated"
        state = " closed" * self.closed
        return f"<{type(self).__name__} {self.name!r} {size_text(self.size_bytes)} {kind}{state}>"

    # ---- what the kinds implement -------------------------------------------------------------

    @abstractmethod
    async def _fetch(
        self, wanted: deque[Piece], arrived: Callable[[Piece, bytes], None], window: int
    ) -> None:
        """Read pieces, `window` at a time, until none is left; `arrived` may append some."""

    @abstractmethod
    async def _put(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        """Write pieces, in their order."""

    @abstractmethod
    async def _swap(self, offset: int, expected: int, desired: int) -> int: ...

    @abstractmethod
    async def _add(self, offset: int, value: int) -> int: ...

    def _end(self) -> None:
        """Give back what this end holds."""

    # ---- ends ---------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """See `RemoteRegion`."""
        return bool(self._ended)

    @property
    def mapping(self) -> memoryview | None:
        """See `RemoteRegion`."""
        self.check()
        return None

    def end(self, reason: str) -> None:
        """Note that it is over; what is under way, and what comes, fails with `reason`."""
        if not self._ended:
            self._ended = reason
            self._end()

    async def aclose(self) -> None:
        """See `RemoteRegion`."""
        if not self._ended:
            self.end(f"region {self.name!r} has been closed here")
            await self._link.release(self)

    def check(self) -> None:
        """Raise `RemoteAccessError` if it has ended."""
        if self._ended:
            raise RemoteAccessError(self._ended)
        self._link.check()

    def _check_span(self, offset: int, length: int) -> Span:
        offset, length = index(offset), index(length)
        if not (0 <= offset <= self.size_bytes and 0 <= length <= self.size_bytes - offset):
            raise RemoteAccessError(
                f"{length} bytes at offset {offset} are not within region {self.name!r} of"
                f" {self.size_bytes} bytes"
            )
        return offset, length

    def _check_word(self, offset: int) -> None:
        if not self.atomic:
            raise RemoteAccessError(
                f"the owner of region {self.name!r} does not grant atomic operations"
            )
        self._check_span(offset, 8)
        if offset % 8:
            raise RemoteAccessError(
                f"offset {offset} is not a multiple of 8: atomics need an aligned word"
            )

    def _check_write(self, offset: int, data: memoryview) -> None:
        if not self.writable:
            raise RemoteAccessError(f"the owner of region {self.name!r} does not grant writing")
        self._check_span(offset, len(data))

    # ---- reading ------------------------------------------------------------------------------

    def read_now(self, offset: int, length: int) -> bytes:
        """See `RemoteRegion`."""
        del offset, length
        self.check()
        raise RemoteAccessError(
            f"region {self.name!r} has no local mapping: use `await region.read(...)`"
        )

    async def read(self, offset: int, length: int) -> bytes:
        """See `RemoteRegion`."""
        return (await self.read_many(((offset, length),)))[0]

    async def read_many(self, spans: Sequence[Span]) -> list[bytes]:
        """See `RemoteRegion`."""
        found: list[Any] = [None] * len(spans)
        wanted: deque[Piece] = deque()
        total_bytes = 0
        for number, span in enumerate(spans):
            offset, length = self._check_span(*span)
            total_bytes += length
            _check_amount(total_bytes)
            self._want(wanted, _Part(number, offset, length))

        def arrived(piece: Piece, data: bytes) -> None:
            whole = _whole(piece, data)
            if whole is not None:
                found[piece.part.number] = whole

        self.check()
        await self._fetch(wanted, arrived, WINDOW_MAX)
        return found

    async def read_each(self, spans: Iterable[Span], take: Take, *, window: int = 16) -> None:
        """See `RemoteRegion`."""
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window is {window}; it can be 1 to {WINDOW_MAX}")
        wanted: deque[Piece] = deque()

        def want(more: Iterable[Span]) -> None:
            for span in more:
                offset, length = self._check_span(*span)
                _check_amount(length)
                self._want(wanted, _Part(0, offset, length))

        def arrived(piece: Piece, data: bytes) -> None:
            whole = _whole(piece, data)
            if whole is not None:
                more = take(piece.part.offset, whole)
                if more is not None:
                    want(more)

        self.check()
        want(spans)
        await self._fetch(wanted, arrived, window)

    def _want(self, wanted: deque[Piece], part: _Part) -> None:
        if part.length <= self.piece_bytes:
            wanted.append(Piece(part, part.offset, part.length))
            return
        part.found = {}
        part.missing_bytes = part.length
        for offset, length in wire.cut((part.offset, part.length), self.piece_bytes):
            wanted.append(Piece(part, offset, length))

    # ---- changing -----------------------------------------------------------------------------

    async def write(self, offset: int, data: Buffer) -> None:
        """See `RemoteRegion`."""
        with memoryview(data) as view, view.cast("B") as plain:
            self._check_write(offset, plain)
            self.check()
            spans = wire.cut((offset, len(plain)), self.piece_bytes)
            pieces = ((at, plain[at - offset : at - offset + length]) for at, length in spans)
            await self._put(pieces)

    async def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """See `RemoteRegion`."""
        self._check_word(offset)
        for value in (expected, desired):
            if not 0 <= value <= wire.WORD_MAX:
                raise ValueError(f"{value} does not fit into a word of 64 bits")
        self.check()
        return await self._swap(offset, expected, desired)

    async def fetch_and_add(self, offset: int, value: int) -> int:
        """See `RemoteRegion`."""
        self._check_word(offset)
        if not -(1 << 63) <= value <= wire.WORD_MAX:
            raise ValueError(f"{value} does not fit into a word of 64 bits")
        self.check()
        return await self._add(offset, value & wire.WORD_MAX)


class EmulatedRegion(BaseRegion):
    """A region whose owner executes what is asked for."""

    # Requests go over one link in the order of their spans, and `OwnerLink` executes them so.
    in_order = True

    async def _finish(self, begun: Any, parse: Callable[[bytes], T]) -> T:
        """Wait for an answer and read it; one that makes no sense ends the link."""
        try:
            answer = await self._link.finish(begun)
        except wire.RegionGone as error:
            self.end(str(error))
            raise RemoteAccessError(self._ended) from None
        try:
            return parse(answer)
        except RemoteProtocolError as error:
            self._link.fail(error)
            raise

    async def _fetch(
        self, wanted: deque[Piece], arrived: Callable[[Piece, bytes], None], window: int
    ) -> None:
        begun: deque[tuple[Any, list[Piece]]] = deque()
        room = window
        try:
            while wanted or begun:
                if wanted and room and len(begun) < FRAMES_IN_FLIGHT:
                    batch = _batch(wanted, min(room, wire.SPANS_MAX), self.piece_bytes)
                    spans = [(piece.offset, piece.length) for piece in batch]
                    request = await self._link.begin(wire.pack_read(self.handle, spans))
                    begun.append((request, batch))
                    room -= len(batch)
                    continue
                request, batch = begun[0]
                total = sum(piece.length for piece in batch)
                data = await self._finish(request, partial(wire.check_data, size_bytes=total))
                begun.popleft()
                room += len(batch)
                self._deliver(batch, data, arrived)
        except BaseException:
            for request, _ in begun:
                self._link.abandon(request)
            raise

    def _deliver(
        self, batch: list[Piece], data: bytes, arrived: Callable[[Piece, bytes], None]
    ) -> None:
        self.check()
        if len(batch) == 1:
            arrived(batch[0], data)
            return
        start = 0
        for piece in batch:
            arrived(piece, data[start : start + piece.length])
            start += piece.length

    async def _put(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        begun: deque[Any] = deque()
        try:
            for offset, data in pieces:
                if len(begun) == FRAMES_IN_FLIGHT:
                    await self._finish(begun[0], wire.check_empty)
                    begun.popleft()
                payload = wire.pack_write(self.handle, offset, data)
                begun.append(await self._link.begin(payload))
            while begun:
                await self._finish(begun[0], wire.check_empty)
                begun.popleft()
        except BaseException:
            for request in begun:
                self._link.abandon(request)
            raise
        self.check()

    async def _swap(self, offset: int, expected: int, desired: int) -> int:
        payload = wire.pack_swap(self.handle, offset, expected, desired)
        return await self._finish(await self._link.begin(payload), wire.parse_word)

    async def _add(self, offset: int, value: int) -> int:
        payload = wire.pack_add(self.handle, offset, value)
        return await self._finish(await self._link.begin(payload), wire.parse_word)


def _batch(wanted: deque[Piece], count_max: int, bytes_max: int) -> list[Piece]:
    """Take as many pieces as one request may ask for; at least one."""
    batch = [wanted.popleft()]
    total = batch[0].length
    while wanted and len(batch) < count_max and total + wanted[0].length <= bytes_max:
        total += wanted[0].length
        batch.append(wanted.popleft())
    return batch


def _whole(piece: Piece, data: bytes) -> bytes | None:
    """Note a piece that has come; return the part once it is whole."""
    part = piece.part
    if part.found is None:
        return data
    part.found[piece.offset] = data
    part.missing_bytes -= piece.length
    if part.missing_bytes:
        return None
    return b"".join([part.found[offset] for offset in sorted(part.found)])


def _check_amount(size_bytes: int) -> None:
    if size_bytes > READ_BYTES_MAX:
        raise RemoteAccessError(
            f"{size_text(size_bytes)} are too much to read at once: at most"
            f" {size_text(READ_BYTES_MAX)}, so read it in parts"
        )
