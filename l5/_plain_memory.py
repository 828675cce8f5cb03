"""Memory of a region where the C core is missing: no other process sees it, only emulation does."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from ._errors import RemoteAccessError
from ._memory_wire import WORD, WORD_MAX

if TYPE_CHECKING:
    from .abc import Buffer

__all__ = ["PlainMemory"]


class PlainMemory:
    """What `l5.native.Memory` is for its owner, in Python; the GIL makes words whole."""

    def __init__(self, size: int) -> None:
        self.size: int = size
        self.open: bool = True
        self._map = mmap.mmap(-1, size)
        self._whole = memoryview(self._map)

    def view(self) -> memoryview:
        """Return a writable view."""
        self._check(0, 0)
        return memoryview(self._map)

    def _check(self, offset: int, length: int) -> None:
        if not self.open:
            raise RemoteAccessError("this region is closed")
        if not (0 <= offset <= self.size and 0 <= length <= self.size - offset):
            raise RemoteAccessError(
                f"{length} bytes at offset {offset} are not within this region of {self.size} bytes"
            )

    def read_now(self, offset: int, length: int) -> bytes:
        """Copy."""
        self._check(offset, length)
        return bytes(self._whole[offset : offset + length])

    def write(self, offset: int, data: Buffer) -> None:
        """Copy."""
        with memoryview(data) as view, view.cast("B") as plain:
            self._check(offset, len(plain))
            self._whole[offset : offset + len(plain)] = plain

    def _word(self, offset: int) -> int:
        self._check(offset, 8)
        if offset % 8:
            raise RemoteAccessError(
                f"offset {offset} is not a multiple of 8: atomics need an aligned word"
            )
        return WORD.unpack_from(self._whole, offset)[0]

    def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """Replace a word if it is `expected`; return what was there."""
        old = self._word(offset)
        if old == expected:
            WORD.pack_into(self._whole, offset, desired)
        return old

    def fetch_and_add(self, offset: int, value: int) -> int:
        """Add to a word; return what was there."""
        old = self._word(offset)
        WORD.pack_into(self._whole, offset, (old + value) & WORD_MAX)
        return old

    def close(self, reason: str) -> None:
        """Refuse accesses; the memory goes when no view is left."""
        del reason
        if self.open:
            self.open = False
            self._whole.release()
            try:
                self._map.close()
            except BufferError:
                pass  # a view keeps it, and its end gives it back
