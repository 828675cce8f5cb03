"""A message of which some segments have arrived, and where it is put together.

    spare (1 MiB)  | segment | segment | segment |   room   |      segments: | segment | segment |
                                                 ^spare_used                   what is behind that

A message's segments and the whole of it, each an object of its own, are so much memory that the
allocator gives it back to the system after each message, and half of the time goes into page
faults.  So a few messages at a time are put together in memory that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

SHORT_BYTES: Final = 4096
SPARE_BYTES: Final = 1 << 20

_spares: list[memoryview | None] = [None, None]
"""Where long messages are put together; None: not made yet.

Any thread takes from here (a list's pop and append are atomic); who finds none does without.
"""


def ignore(_: Exception) -> None:
    """What can be done to a connection that cannot be broken: nothing."""


@attrs.define(eq=False)
class Partial:
    """A message of which some segments have arrived."""

    key: tuple[bool, int]
    retry: Callable[[], None]
    cut: Callable[[Exception], None] = ignore
    """Break the connection that it comes from."""
    spare: memoryview | None = None
    spare_used: int = 0
    """Bytes of it that the beginning of the message has."""
    segments: list[bytes | bytearray] = attrs.field(factory=list[bytes | bytearray])
    """What is behind that."""
    size_bytes: int = 0
    allowed_bytes: int = 0
    starved: bool = False
    refused: bool = False
    """Nothing of it is kept, and so it may come: its end is answered by an error."""

    def append(self, payload: bytes) -> None:
        """Keep a segment; short ones in one buffer, or each would cost an object."""
        self.size_bytes += len(payload)
        if self.refused:
            return
        if self.spare is not None and self._fits(len(payload)):
            self.spare[self.spare_used : self.size_bytes] = payload
            self.spare_used = self.size_bytes
        elif len(payload) >= SHORT_BYTES:
            self.segments.append(payload)
        elif self.segments and isinstance(self.segments[-1], bytearray):
            self.segments[-1] += payload
        elif payload:
            self.segments.append(bytearray(payload))

    def _fits(self, size_bytes: int) -> bool:
        return not self.segments and self.spare_used + size_bytes <= SPARE_BYTES

    def borrow(self) -> None:
        """Take a spare if there is one left."""
        if _spares:
            try:
                spare = _spares.pop()
            except IndexError:  # another thread was faster
                return
            self.spare = memoryview(bytearray(SPARE_BYTES)) if spare is None else spare

    def message(self) -> bytes:
        """Return all of it."""
        if self.spare is None:
            return b"".join(self.segments)
        begin = self.spare[: self.spare_used]
        return b"".join((begin, *self.segments)) if self.segments else begin.tobytes()

    def clear(self) -> None:
        """Forget what has arrived."""
        self.segments.clear()
        if self.spare is not None:
            _spares.append(self.spare)
            self.spare = None
