"""`listen`: accept connections one by one."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio

from .._acceptor import Acceptor
from ._budget import ThreadBudget, TotalBudget
from ._connection import Connection
from ._private_loop import LoopThread

if TYPE_CHECKING:
    from .._bootstrap import Established
    from .._options import ListenOptions


def listen(*urls: str, **options: Any) -> Listener:
    """Listen on `urls` and return a `Listener`; options as for `serve`.

    Raises `AddressError` for a bad URL or option and `OSError` when a URL is taken.
    """
    return Listener(Acceptor(urls, options))


class Listener:
    """Accept connections, in any number of threads.

    Handshakes are done by a thread of its own, so that a slow stranger holds up nobody; connections
    that nobody has accepted yet count among ``connections_max``.
    """

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._total = TotalBudget(acceptor.options.total_reassembly_bytes)
        self._accepted: queue.SimpleQueue[tuple[Established, ListenOptions] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._loop = LoopThread("l5 accepting")
        try:
            self._loop.call(acceptor.open)
            self._loop.start(acceptor.run, self._on_established)
        except BaseException:
            self._loop.stop()
            raise

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach this listener (with the real ports)."""
        return self._acceptor.urls

    async def _on_established(self, made: Established, options: ListenOptions) -> None:
        self._accepted.put((made, options))

    def accept(self, *, timeout: float | None = None) -> Connection:
        """Return the next connection; the caller closes it.

        Raises `TimeoutError` after `timeout` seconds, `anyio.ClosedResourceError` once closed, and
        `OSError` for a connection that is lost to a limit of this process.
        """
        try:
            found = self._accepted.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            raise TimeoutError("nobody has connected within the timeout") from None
        if found is None:
            self._accepted.put(None)  # for the next one who asks
            raise anyio.ClosedResourceError
        made, options = found
        budget = ThreadBudget(options.reassembly_bytes, self._total)
        try:
            connection = Connection(made, options, budget)
        except BaseException:
            self._left(made)
            raise
        ended = connection._session.on_close  # pyright: ignore[reportPrivateUsage]
        ended.append(lambda: self._left(made))
        return connection

    def _left(self, made: Established) -> None:
        async def left() -> None:
            self._acceptor.left(made)

        self._loop.tell(left)

    def close(self) -> None:
        """Stop listening; connections that were accepted go on, others are closed."""
        if self._closed:
            return
        self._closed = True
        self._loop.call(self._stop)
        self._loop.stop()
        while True:
            try:
                found = self._accepted.get_nowait()
            except queue.Empty:
                break
            if found is not None:
                found[0].close()
        self._accepted.put(None)

    async def _stop(self) -> None:
        self._acceptor.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
