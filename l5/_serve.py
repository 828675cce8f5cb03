"""`serve`: a handler for each request, or for each connection."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc
import attrs

from ._acceptor import Acceptor, open_session
from ._connection import Connection
from ._errors import RemoteProtocolError
from ._farewell import leave
from ._flow import Budget
from ._handler import Handler, settled, takes_context
from ._heartbeat import tell_client
from ._limits import explain
from ._live import add_server, on_session, remove_server
from ._loop import in_task
from ._service import NativeService
from ._statistics import answered_in_c
from ._wait import Hub, current_hub
from ._workers import Workers

if TYPE_CHECKING:
    from ._bootstrap import Established
    from ._options import ListenOptions
    from ._region import Region
    from ._session import Session

logger = logging.getLogger("l5.server")


@attrs.frozen
class ServerStatistics:
    """Counters of a server since it was started."""

    connections: int
    """Open now."""
    connections_total: int
    rejected: int
    """Handshakes that were turned away."""
    requests: int
    """Answered requests, errors included; without those of native services."""
    failed: int
    """Requests whose handler raised."""
    cancelled: int
    running: int
    """Handlers that are suspended now."""
    workers: int


def serve(
    handler: Handler | Callable[[Connection], Awaitable[None]] | NativeService,
    *urls: str,
    per: Literal["request", "connection"] = "request",
    **options: Any,
) -> Server:
    """Return a server for `urls`, started by ``async with`` and stopped when the block is left.

    `handler` takes a request (`bytes`, a private copy) and returns the answer (any buffer); it may
    be plain or ``async``, and may take a `RequestContext` as its second argument.  What it raises
    reaches the client as `RequestFailed`.  With ``per="connection"`` it is an ``async`` function of
    a `Connection`, which is closed when it returns.  A `NativeService` answers in C.  Options stand
    in the URLs' queries or are keywords (see `l5.ListenOptions`).

    Leaving the block stops accepting, lets running requests finish within ``grace`` seconds, and
    closes.  Raises `AddressError` here, `OSError` when the block is entered and a URL is taken.
    """
    if per not in ("request", "connection"):
        raise ValueError(f"per={per!r}: a server is per 'request' or per 'connection'")
    return Server(handler, urls, per, options)


class Server:
    """A running server; made by `serve`."""

    def __init__(
        self, handler: Any, urls: Sequence[str], per: str, options: dict[str, Any]
    ) -> None:
        if per == "request" and not isinstance(handler, NativeService):
            takes_context(handler)  # a handler that cannot be called is an error here and now
        if per == "connection" and not callable(handler):
            raise TypeError(f"a handler is an async function of a connection, not {handler!r}")
        self._acceptor = Acceptor(urls, options)
        self._options = self._acceptor.options
        self._per = per
        self._native = handler if isinstance(handler, NativeService) else None
        self._handler: Any = self._native.call if self._native else handler
        self._budget = Budget(self._options.total_reassembly_bytes)
        self._sessions: set[Session] = set()
        self._workers: Workers | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._hub: Hub | None = None
        self._closed: anyio.Event | None = None
        self._draining = False
        self._connections_total = 0
        self._answered_before = 0

    # ---- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Server:
        if self._closed is not None:
            raise RuntimeError("this server has been started before: make another one by l5.serve")
        self._hub = current_hub()
        await self._acceptor.open()
        if self._native is not None:
            try:
                self._native.start()
            except BaseException:
                self._acceptor.close()
                raise
        logger.info("listening on %s", ", ".join(self.urls))
        self._closed = anyio.Event()
        self._group = await anyio.create_task_group().__aenter__()
        if self._per == "request":
            plain = self._native is not None
            self._workers = Workers(self._handler, self._hub, self._group, plain=plain)
            self._workers.start_worker()
        self._group.start_soon(self._acceptor.run, self._on_established)
        self._group.start_soon(self._end_stalls)
        add_server(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._group is not None
        # An error of the block's, `SystemExit` too, goes on as it is and not in a group.
        own = exc_value is not None and not isinstance(exc_value, anyio.get_cancelled_exc_class())
        given = (None, None, None) if own else (exc_type, exc_value, traceback)
        try:
            await self.stop(self._options.grace if exc_value is None else 0.0)
        finally:
            self._group.cancel_scope.cancel()
            result = await self._group.__aexit__(*given)
        return None if own else result

    async def stop(self, grace: float | None = None) -> None:
        """Stop accepting, let running requests finish within `grace` seconds, close everything."""
        closed = self._started()
        seconds = self._options.grace if grace is None else grace
        try:
            if not self._draining:
                self._draining = True
                self._acceptor.close()
                await self._drain(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                if self._native is not None:
                    await self._native.stop(seconds)
            try:
                async with anyio.create_task_group() as group:
                    for session in list(self._sessions):
                        group.start_soon(leave, session)
            finally:
                self._acceptor.exports.close()
                for session in list(self._sessions):
                    session.close()
                remove_server(self)
                closed.set()
                logger.info("stopped: %s", ", ".join(self.urls))

    async def _drain(self, grace: float) -> None:
        if self._workers is None:
            return
        for session in self._sessions:
            hot: Any = session.ring or session.lane
            if hot is not None:
                hot.server = None  # new requests go to on_request, which refuses
        await self._workers.drain(grace)

    async def wait_closed(self) -> None:
        """Wait until the server has been stopped (by `stop`, or by leaving its block)."""
        await self._started().wait()

    async def serve_forever(self) -> None:
        """Serve until the process gets SIGINT or SIGTERM, then stop as `stop` does.

        For programs whose only work this is: Ctrl-C ends them without a traceback, after running
        requests have had their ``grace`` seconds.  A second signal ends that wait.  Returns also
        when the server is stopped otherwise.  In another thread than the main one, which gets no
        signals, it only waits.
        """
        closed = self._started()
        if threading.current_thread() is not threading.main_thread():  # signals are not for it
            await closed.wait()
            return
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:

                async def obey() -> None:
                    count = 0
                    async for number in signals:
                        count += 1
                        name = signal.Signals(number).name
                        logger.info("%s: %s", name, "closing" if count > 1 else "finishing")
                        group.start_soon(self.stop, 0.0 if count > 1 else None)

                group.start_soon(obey)
                await closed.wait()
                group.cancel_scope.cancel()

    def _started(self) -> anyio.Event:
        if self._closed is None:
            raise RuntimeError(
                "this server has not been started: use it as `async with l5.serve(...) as server:`"
            )
        return self._closed

    # ---- memory --------------------------------------------------------------------------------

    def export(self, name: str, region: Region) -> None:
        """Let clients open `region` by `name` (`Connection.open_region`), with its rights.

        Everybody who may connect may open it.  May be called before the server is started.  Raises
        `ValueError` for a name that is taken or cannot be one, and for a closed region.
        """
        self._acceptor.exports.add(name, region)

    def revoke(self, name: str) -> None:
        """Take back what `export` gave: whoever has it open gets `RemoteAccessError` from now on.

        Nothing that is written into the region afterwards is returned by any read.
        """
        self._acceptor.exports.remove(name)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach this server (with the real ports)."""
        return self._acceptor.urls

    def statistics(self) -> ServerStatistics:
        """Return the counters as an immutable value."""
        workers = self._workers
        generic = workers.requests if workers else 0
        return ServerStatistics(
            connections=self._acceptor.connections,
            connections_total=self._connections_total,
            rejected=self._acceptor.rejected,
            requests=generic
            + self._answered_before
            + sum(map(answered_in_c, list(self._sessions))),
            failed=workers.failed if workers else 0,
            cancelled=workers.cancelled if workers else 0,
            running=workers.running if workers else 0,
            workers=len(workers) if workers else 0,
        )

    # ---- connections ---------------------------------------------------------------------------

    async def _end_stalls(self) -> None:
        """Cut off who has begun the oldest long message and lets the others wait for its rest."""
        seconds = self._options.stall_timeout
        while True:
            await anyio.sleep(seconds)
            stalled = self._budget.stalled()
            if stalled is not None:
                stalled.cut(
                    RemoteProtocolError(
                        f"a half-sent message stood still for {seconds:g} s (stall_timeout) while "
                        "others waited for its memory"
                    )
                )

    async def _on_established(self, made: Established, options: ListenOptions) -> None:
        self._connections_total += 1
        try:
            if self._draining:
                made.close()
            elif self._per == "connection":
                await self._run_connection(made, options)
            elif self._native is not None and _to_threads(made):
                await self._run_native(self._native, made)
            else:
                await self._keep_session(made, options)
        finally:
            self._acceptor.left(made)

    def _open(
        self, made: Established, options: ListenOptions, workers: Workers | None
    ) -> Session | None:
        assert self._hub is not None
        budget = Budget(options.reassembly_bytes, self._budget)
        session = open_session(self._acceptor.dropped, self._hub, made, options, budget, workers)
        if session is not None:
            tell_client(session)
        return session

    async def _run_connection(self, made: Established, options: ListenOptions) -> None:
        session = self._open(made, options, None)
        if session is None:
            return
        self._sessions.add(session)
        try:
            async with Connection(session) as connection:
                await self._handler(connection)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.debug("a connection ended: %r", error)
        except BaseException as error:
            if not in_task():  # it is thrown away with its event loop
                raise
            text = "the handler of a connection raised; the connection is closed"
            logger.error(text, exc_info=settled(error))
        finally:
            self._sessions.discard(session)

    async def _run_native(self, native: NativeService, made: Established) -> None:
        try:
            await native.run_connection(made)
        except OSError as error:
            dropped = self._acceptor.dropped
            dropped.say("a connection from %s is dropped: %s", made.peer, explain(error))

    async def _keep_session(self, made: Established, options: ListenOptions) -> None:
        ended = anyio.Event()
        session = self._open(made, options, self._workers)
        if session is None:
            return
        session.on_close.append(ended.set)
        self._sessions.add(session)
        try:
            await ended.wait()
        finally:
            self._sessions.discard(session)
            self._answered_before += answered_in_c(session)
            session.close()


def _to_threads(made: Established) -> bool:
    """Tell whether a native service's threads can serve it: over shared memory, without a tap."""
    return getattr(made.channel, "ring", None) is not None and not on_session
