"""What l5 needs of the running event loop beyond anyio: a descriptor that stays registered.

`anyio.wait_readable` registers and unregisters a descriptor for every wait, which costs more on
asyncio than all the rest of a small request.  A `Descriptor` is registered once.  This is the
only module of l5 that knows which event loops exist; it imports none that is not running.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "Descriptor",
    "checkpoint",
    "current_loop_token",
    "current_task",
    "in_task",
    "loop_checkpoint",
    "stray_cancellation",
]


def _no_loop() -> Any:
    return None


# What tells which loop runs, once its module has been imported by somebody.
_trio_says: Any = None
"""sniffio's thread-local, in which trio writes its name while it runs."""
_asyncio_loop: Callable[[], Any] = _no_loop


def _look_for_loops() -> None:
    # sniffio, if it is there at all, has been imported by anyio.
    global _trio_says, _asyncio_loop
    if "sniffio" in sys.modules:
        _trio_says = sys.modules["sniffio"].thread_local
    if "asyncio" in sys.modules:
        _asyncio_loop = sys.modules["asyncio"]._get_running_loop


def _in_trio() -> bool:
    """Tell whether trio runs the caller."""
    if _trio_says is None:
        _look_for_loops()
    # Asked before asyncio: in trio's guest mode both loops run in one thread.
    if _trio_says is not None and _trio_says.name == "trio":
        return True
    lowlevel = sys.modules.get("trio.lowlevel")
    return lowlevel is not None and _asyncio_loop() is None and lowlevel.in_trio_task()


def current_loop_token() -> object:
    """Return a hashable object that stands for the running event loop.

    It can be referenced weakly.  Raises `RuntimeError` where no loop runs.
    """
    # On the way of every request, so the usual case comes first and without a call.
    if _trio_says is None or _trio_says.name != "trio":
        loop = _asyncio_loop()
        if loop is not None:
            return loop
    if _in_trio():
        return sys.modules["trio.lowlevel"].current_trio_token()
    _look_for_loops()
    loop = _asyncio_loop()
    if loop is None:
        raise RuntimeError("no event loop is running here: call this from asyncio or trio code")
    return loop


@types.coroutine
def _yield_once() -> Generator[None]:
    # What `asyncio.sleep(0)` does, and so anyio's own checkpoint, less one coroutine.  Cancel
    # scopes of anyio are delivered by `Task.cancel`, so a bare yield honours them, too.
    yield


def current_task() -> object:
    """Return the running task of the running event loop."""
    if _in_trio():
        return sys.modules["trio.lowlevel"].current_task()
    return sys.modules["asyncio"].current_task()


def in_task() -> bool:
    """Tell whether a task of a running event loop runs the caller: not where it is thrown away."""
    try:
        return current_task() is not None
    except RuntimeError:
        return False


def checkpoint() -> Awaitable[None]:
    """Let other tasks run once and honour cancellation; to be awaited at once."""
    if _in_trio():
        return sys.modules["trio.lowlevel"].checkpoint()
    return _yield_once()


def loop_checkpoint() -> Callable[[], Awaitable[None]]:
    """Return what `checkpoint` does in the running loop, for who stays with that loop."""
    return sys.modules["trio.lowlevel"].checkpoint if _in_trio() else _yield_once


def stray_cancellation(error: BaseException) -> bool:
    """Tell whether this is a cancellation that nobody asked the running task for.

    In asyncio awaiting what somebody else has cancelled raises `CancelledError` as well.
    """
    if _in_trio():
        return False  # there it always comes from a scope of the task's own
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


class Descriptor:
    """Keep one descriptor registered with the event loop that runs when this is made.

    The descriptor belongs to the caller, who closes this before closing that.
    """

    def __new__(cls, fd: int) -> Descriptor:
        if cls is Descriptor:
            cls = _TrioDescriptor if _in_trio() else _AsyncioDescriptor
        return object.__new__(cls)

    def __init__(self, fd: int) -> None:
        """Bind to the running loop; nothing is registered before the first wait."""
        raise NotImplementedError

    async def wait_readable(self) -> None:
        """Wait until the descriptor is readable; it may return although it no longer is.

        Raises `anyio.BusyResourceError` when another task waits already and
        `anyio.ClosedResourceError` once `close` was called.  Cancellation has no effect on
        later waits.
        """
        raise NotImplementedError

    def readable(self) -> Awaitable[object]:
        """Do what `wait_readable` does, to be awaited at once; closed meanwhile, it returns."""
        return self.wait_readable()

    def close(self) -> None:
        """Unregister and wake who waits; may be called twice, and after the loop has ended."""
        raise NotImplementedError


class _AsyncioDescriptor(Descriptor):
    """A reader that stays with the loop; readiness is level-triggered, so it needs care.

    Readiness that nobody waits for would wake the loop without end: the reader is taken out
    and put back by the next wait.

    asyncio's own loops collect events first and run tasks afterwards.  In the iteration in
    which the woken task empties the descriptor, the event that was collected just before is
    still queued behind it and would end the task's next wait for nothing.  So one call after
    each wake-up is ignored; if it was meant after all, the next iteration repeats it.
    """

    def __init__(self, fd: int) -> None:
        import asyncio

        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._collects_first = isinstance(self._loop, asyncio.BaseEventLoop)
        self._waiter: asyncio.Future[bool] | None = None  # done: nobody waits
        self._registered = False
        self._ignore_next = False
        self._closed = False

    async def wait_readable(self) -> None:
        if not await self.readable():
            raise anyio.ClosedResourceError

    def readable(self) -> asyncio.Future[bool]:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._waiter is not None and not self._waiter.done():
            raise anyio.BusyResourceError("waiting for")
        if not self._registered:
            self._loop.add_reader(self._fd, self._on_readable)
            self._registered = True
            self._ignore_next = False
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def _on_readable(self) -> None:
        waiter = self._waiter
        if self._ignore_next:
            self._ignore_next = False
        elif waiter is None or waiter.done():
            self._loop.remove_reader(self._fd)
            self._registered = False
        else:
            waiter.set_result(True)
            self._ignore_next = self._collects_first

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._loop.is_closed():
            return
        if self._registered:
            self._loop.remove_reader(self._fd)
            self._registered = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)


class _TrioDescriptor(Descriptor):
    """trio keeps a descriptor in its epoll set by itself, re-armed at each wait."""

    def __init__(self, fd: int) -> None:
        import trio

        self._fd = fd
        self._trio = trio
        self._wait = trio.lowlevel.wait_readable
        self._waiting = False
        self._closed = False

    async def wait_readable(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._waiting:
            raise anyio.BusyResourceError("waiting for")
        self._waiting = True
        try:
            await self._wait(self._fd)
        except self._trio.ClosedResourceError:
            raise anyio.ClosedResourceError from None
        except self._trio.BusyResourceError:
            raise anyio.BusyResourceError("waiting for") from None
        finally:
            self._waiting = False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._trio.lowlevel.notify_closing(self._fd)
        except RuntimeError:
            pass  # trio no longer runs in this thread, so nobody waits
