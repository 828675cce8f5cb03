"""Regions over shared memory, at the client: the owner's file, mapped; operations are accesses."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from .. import native
from .._errors import TransportUnavailable
from .._limits import explain
from .._memory import EmulatedRegion, Piece
from .._memory_wire import WORD_MAX

if TYPE_CHECKING:
    from ..abc import Buffer, OpenedRegion, Span

__all__ = ["CONTROL_BYTES", "MappedRegion", "map_alien"]

CONTROL_BYTES: Final = 4096
PIECE_BYTES: Final = 256 << 10
"""Copied at once, with the event loop waiting; the same in `native/_memory.c`."""
TURN_NS: Final = 500_000
"""How long reads go on before the event loop runs, and news of the owner's death is looked for."""
MANY: Final = 256
"""Reads of `read_many` between two looks at the clock."""

_aliens: weakref.WeakSet[Any] = weakref.WeakSet()


def map_alien(fd: int, size_bytes: int, *, writable: bool) -> Any:
    """Verify and map another process's region; `TransportUnavailable` says what is wrong."""
    why = native.ffi.new("char const **")
    if native.lib.l5_region_verify(fd, size_bytes, writable, why):
        raise TransportUnavailable("shm", native.ffi.string(why[0]).decode())
    try:
        memory = native.Memory(fd, size_bytes, writable, True)
    except OSError as error:
        raise TransportUnavailable("shm", explain(error)) from None
    _aliens.add(memory)
    return memory


class MappedRegion(EmulatedRegion):
    """A region whose memory is mapped here: no system call, and nothing for the owner to do.

    Only atomics of a region that grants no writing are the owner's: its memory cannot be mapped
    for writing by anybody.
    """

    one_sided = True

    def __init__(self, opened: OpenedRegion, memory: Any) -> None:
        super().__init__(opened)
        self._memory = memory
        self.piece_bytes = PIECE_BYTES
        self._read: Callable[[int, int], bytes | None] = memory.read
        self._atomics = opened.atomic and opened.writable
        vars(self)["read_now"] = memory.read_now  # in place of the method, which costs a call
        memory.turn_ns = 1 if opened.link.strict else TURN_NS

    # ---- ends ---------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """See `RemoteRegion`."""
        return not self._memory.granted

    @property
    def mapping(self) -> memoryview | None:
        """See `RemoteRegion`."""
        return memoryview(self._memory)

    def read_now(self, offset: int, length: int) -> bytes:
        """See `RemoteRegion`."""
        return self._memory.read_now(offset, length)

    def _end(self) -> None:
        self._memory.close(self._ended)

    async def _breathe(self) -> None:
        """Let the event loop run; news of the owner, if there are any, end this region."""
        self.check()
        await self._link.hub.breathe()
        self.check()
        self._memory.breathed()

    # ---- operations ---------------------------------------------------------------------------

    async def read(self, offset: int, length: int) -> bytes:
        """See `RemoteRegion`."""
        data = self._read(offset, length)
        if data is not None:
            return data
        return await self._read_on(offset, length)

    async def _read_on(self, offset: int, length: int) -> bytes:
        await self._breathe()
        if length <= PIECE_BYTES:
            return self._memory.read_now(offset, length)
        return (await super().read_many(((offset, length),)))[0]

    async def read_many(self, spans: Sequence[Span]) -> list[bytes]:
        """See `RemoteRegion`."""
        if len(spans) > MANY:
            return await super().read_many(spans)
        read = self._read
        found = [read(offset, length) for offset, length in spans]
        if None in found:
            return await super().read_many(spans)
        return found  # type: ignore[return-value]

    async def _fetch(
        self, wanted: deque[Piece], arrived: Callable[[Piece, bytes], None], window: int
    ) -> None:
        del window
        read = self._read
        while wanted:
            piece = wanted.popleft()
            data = read(piece.offset, piece.length)
            if data is None:
                await self._breathe()
                data = self._memory.read_now(piece.offset, piece.length)
            arrived(piece, data)

    async def write(self, offset: int, data: Buffer) -> None:
        """See `RemoteRegion`."""
        memory = self._memory
        if type(data) is bytes and len(data) <= PIECE_BYTES and self.writable and not memory.due:
            memory.write(offset, data)
        else:
            await super().write(offset, data)

    async def _put(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        for offset, data in pieces:
            if self._memory.due:
                await self._breathe()
            self._memory.write(offset, data)

    async def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """See `RemoteRegion`."""
        memory = self._memory
        sound = 0 <= expected <= WORD_MAX and 0 <= desired <= WORD_MAX
        if sound and self._atomics and not memory.due:
            return memory.compare_and_swap(offset, expected, desired)
        return await super().compare_and_swap(offset, expected, desired)

    async def fetch_and_add(self, offset: int, value: int) -> int:
        """See `RemoteRegion`."""
        memory = self._memory
        if self._atomics and not memory.due and 0 <= value <= WORD_MAX:
            return memory.fetch_and_add(offset, value)
        return await super().fetch_and_add(offset, value)

    async def _swap(self, offset: int, expected: int, desired: int) -> int:
        if not self.writable:
            return await super()._swap(offset, expected, desired)
        if self._memory.due:
            await self._breathe()
        return self._memory.compare_and_swap(offset, expected, desired)

    async def _add(self, offset: int, value: int) -> int:
        if not self.writable:
            return await super()._add(offset, value)
        if self._memory.due:
            await self._breathe()
        return self._memory.fetch_and_add(offset, value)


def _forget_in_child() -> None:
    reason = "this region belongs to the parent process: connect again after fork"
    for memory in list(_aliens):
        memory.forget(reason)


os.register_at_fork(after_in_child=_forget_in_child)
