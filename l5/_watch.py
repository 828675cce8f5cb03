"""Watching many descriptors through one: epoll, or what the standard library has instead."""

from __future__ import annotations

import errno
import os
import select
import selectors
from typing import Any, Protocol

READABLE = 1
WRITABLE = 4


class Watcher(Protocol):
    """A set of descriptors whose own descriptor is readable when one of them has news."""

    def register(self, fd: int, mask: int) -> None:
        """Watch `fd` for READABLE, or READABLE | WRITABLE."""
        ...

    def modify(self, fd: int, mask: int) -> None:
        """Watch for something else."""
        ...

    def unregister(self, fd: int) -> None:
        """Stop watching; before the descriptor is closed."""
        ...

    def poll(self, seconds: float | None = 0.0) -> list[tuple[int, int]]:
        """Return (descriptor, mask) of what is ready; errors count as READABLE.

        Without an argument it only looks; else it waits so long (None: for ever), without the GIL.
        Any thread may wait while others register and look.
        """
        ...

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


def make_watcher() -> Watcher:
    """Return the best there is; `RuntimeError` where nothing has a descriptor of its own."""
    if hasattr(select, "epoll"):
        return _Epoll()
    return _Selector()


def make_bell() -> tuple[int, int]:
    """Make a descriptor to read and one to write; an eventfd is both."""
    if hasattr(os, "eventfd"):
        try:
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS):  # not refused by a seccomp filter
                raise
        else:
            return fd, fd
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


class _Epoll:
    """epoll without the bookkeeping of `selectors`, which costs a microsecond an event."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self.unregister = self._epoll.unregister
        self.fileno = self._epoll.fileno
        self.close = self._epoll.close

    def register(self, fd: int, mask: int) -> None:
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def poll(self, seconds: float | None = 0.0) -> list[tuple[int, int]]:
        events = self._poll(seconds)
        return [
            (fd, mask if not mask & ~(READABLE | WRITABLE) else mask | READABLE)
            for fd, mask in events
        ]


class _Selector:
    def __init__(self) -> None:
        self._selector: Any = selectors.DefaultSelector()
        if not hasattr(self._selector, "fileno"):
            raise RuntimeError("l5 needs epoll or kqueue, which this system does not offer")
        self.fileno = self._selector.fileno
        self.close = self._selector.close
        self.unregister = self._selector.unregister

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, self._events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, self._events(mask))

    def poll(self, seconds: float | None = 0.0) -> list[tuple[int, int]]:
        return [
            (
                key.fd,
                (READABLE if mask & selectors.EVENT_READ else 0)
                | (WRITABLE if mask & selectors.EVENT_WRITE else 0),
            )
            for key, mask in self._selector.select(seconds)
        ]

    @staticmethod
    def _events(mask: int) -> int:
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if mask & WRITABLE else 0)
