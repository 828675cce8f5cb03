"""`Region`: memory of this process that its peers reach by name; the owner's side.

Where there are memfds it is one, filled, mapped, and only then sealed (`native/region.h`).
Elsewhere it is anonymous memory, which peers reach by asking for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from . import abc, native
from ._host import memfd_available
from ._limits import explain
from ._options import size_text
from ._plain_memory import PlainMemory
from .shm._headroom import memory_headroom

if TYPE_CHECKING:
    from .abc import Buffer

__all__ = ["Region", "shared_file"]

SIZE_MAX: Final = 1 << 40
SPARE_BYTES: Final = 1 << 20
"""What an allocation must leave free in its cgroup: page tables and what else runs there."""


def shared_file(size_bytes: int, *, writable: bool) -> tuple[int, Any]:
    """Return a descriptor and the owner's `Memory` of a new sealed file; `OSError` says why not."""
    headroom = memory_headroom()
    if headroom is not None and headroom < size_bytes + SPARE_BYTES:
        raise OSError(
            f"the memory cgroup of this process has {size_text(headroom)} left, a region of"
            f" {size_text(size_bytes)} does not fit: raise its limit or make it smaller"
        )
    fd: int = native.lib.l5_region_create(size_bytes)
    if fd < 0:
        error = OSError(-fd, os.strerror(-fd))
        raise OSError(-fd, f"{size_text(size_bytes)} of shared memory: {explain(error)}")
    try:
        memory = native.Memory(fd, size_bytes, True, False)
        code: int = native.lib.l5_region_seal(fd, writable)
        if code < 0:
            memory.close("")
            raise OSError(-code, f"shared memory cannot be sealed: {os.strerror(-code)}")
    except BaseException:
        os.close(fd)
        raise
    return fd, memory


class Region(abc.Region):
    """See `l5.abc.Region`; made by `create`, given to peers by `Server.export`."""

    def __init__(self, fd: int, memory: Any, size_bytes: int, writable: bool, atomic: bool) -> None:
        self._fd = fd
        self._memory = memory
        self._pid = os.getpid()
        self.size_bytes = size_bytes
        self.writable = writable
        self.atomic = atomic
        self.on_close: list[Callable[[], object]] = []
        """Called once, before the memory goes; by those who export it."""

    @classmethod
    def create(cls, size_bytes: int, *, write: bool = False, atomic: bool = False) -> Region:
        """Return a new region of zeros that every peer may read.

        With `write` peers may write, with `atomic` do compare-and-swap and fetch-and-add.  Over
        shared memory `write` includes atomics for who goes round this library, and without `write`
        nobody but this process can change it, whatever it does.  Raises `ValueError` for a size
        that cannot be, `OSError` when there is not so much memory.
        """
        if not 1 <= size_bytes <= SIZE_MAX:
            raise ValueError(f"a region has 1 byte to {size_text(SIZE_MAX)}, not {size_bytes}")
        if native.available and memfd_available()[0]:
            fd, memory = shared_file(size_bytes, writable=write)
        else:
            fd, memory = -1, PlainMemory(size_bytes)
        return cls(fd, memory, size_bytes, write, atomic)

    def __repr__(self) -> str:
        rights = "read" + "+write" * self.writable + "+atomic" * self.atomic
        return f"<l5.Region {size_text(self.size_bytes)} {rights}{' closed' * self.closed}>"

    @property
    def closed(self) -> bool:
        """See `l5.abc.Region`."""
        return not self._memory.open

    @property
    def view(self) -> memoryview:
        """See `l5.abc.Region`."""
        memory = self._memory
        return memory.view() if isinstance(memory, PlainMemory) else memoryview(memory)

    def fileno(self) -> int:
        """See `l5.abc.Region`."""
        return self._fd

    def read(self, offset: int, length: int) -> bytes:
        """See `l5.abc.Region`."""
        return self._memory.read_now(offset, length)

    def write(self, offset: int, data: Buffer) -> None:
        """See `l5.abc.Region`."""
        self._memory.write(offset, data)

    def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """See `l5.abc.Region`."""
        return self._memory.compare_and_swap(offset, expected, desired)

    def fetch_and_add(self, offset: int, value: int) -> int:
        """See `l5.abc.Region`."""
        return self._memory.fetch_and_add(offset, value)

    def close(self) -> None:
        """Revoke it everywhere it is exported, and give its memory back.

        Views that exist (`view`) stay usable, and keep the memory until they are gone.  In a forked
        child this lets go of the child's share of the memory alone.  As all that concerns a server
        it is for the thread of the server's event loop.
        """
        if self.closed:
            return
        callbacks, self.on_close = self.on_close, []
        if os.getpid() == self._pid:
            for callback in callbacks:
                callback()
        self._memory.close("this region is closed")
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The memory goes with its last reference; the file would not.
        if getattr(self, "_fd", -1) >= 0:
            self._close_file()
