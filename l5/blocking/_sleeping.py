"""What a thread waits with where a task would wait: a wish that suspends the engine, and a lock."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Generator

from .._loop import Descriptor

Wish = Callable[[float | None], bool]
"""Waits at most so many seconds (None: for ever); tells whether it was woken."""


class Expired(BaseException):
    """The time of a call, or of a deadline in it, is over; raised where the engine waits."""


@types.coroutine
def wait_for(wish: Wish) -> Generator[Wish, bool, bool]:
    """Suspend the engine until the calling thread has waited; tell whether its time is over."""
    return (yield wish)


class ThreadEvent:
    """What a thread sleeps on while another one drives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        """See `WaitEvent.set`."""
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    async def wait(self) -> None:
        """See `WaitEvent.wait`."""
        while not self._is_set:
            if await wait_for(self._block) and not self._is_set:
                raise Expired

    def _block(self, seconds: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)


class NoDescriptor(Descriptor):
    """There is no event loop to register the hub's descriptor with."""

    def __init__(self, fd: int) -> None:
        del fd

    def close(self) -> None:
        """Do nothing."""
