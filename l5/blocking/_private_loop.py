"""Where an event loop is needed for a moment: handshakes, and accepting.

A transport's way to its peer, third parties' included, is written with anyio.  Connecting happens
once for a connection, so it runs in a private event loop that is gone when it is over; accepting
has one in a thread of its own.  A connection itself never needs one.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.from_thread

from .._loop import current_loop_token

T = TypeVar("T")


def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function to its end in a private event loop, wherever the caller is."""
    try:
        current_loop_token()
    except RuntimeError:
        return anyio.run(function, *args)
    # A loop runs in this thread already (a notebook has one all the time), and they do not nest.
    with LoopThread("l5 connecting") as loop:
        return loop.call(function, *args)


class LoopThread:
    """A thread with an event loop; it does not keep the interpreter from ending."""

    def __init__(self, name: str) -> None:
        self._started: concurrent.futures.Future[anyio.from_thread.BlockingPortal] = (
            concurrent.futures.Future()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._portal = self._started.result()

    def _run(self) -> None:
        try:
            anyio.run(self._main)
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _main(self) -> None:
        async with anyio.from_thread.BlockingPortal() as portal:
            self._started.set_result(portal)
            await portal.sleep_until_stopped()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a function there and return what it returns; interrupted, it is cancelled."""
        future = self.start(function, *args)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(
        self, function: Callable[..., Awaitable[T]], *args: Any
    ) -> concurrent.futures.Future[T]:
        """Start a task there; `RuntimeError` once the thread has been stopped."""
        return self._portal.start_task_soon(function, *args)

    def tell(self, function: Callable[[], Awaitable[object]]) -> None:
        """Start a task there, if the thread has not been stopped, and do not wait for it."""
        try:
            self.start(function)
        except RuntimeError:
            pass

    def stop(self) -> None:
        """Cancel what runs there and wait for its end; may be called twice."""
        if self._thread.is_alive():
            try:
                self._portal.start_task_soon(self._portal.stop, True)
            except RuntimeError:
                pass  # it is being stopped
            self._thread.join()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
