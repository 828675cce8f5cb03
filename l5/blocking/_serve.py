"""`serve`: a plain handler for each request or each connection, in threads."""

from __future__ import annotations

import inspect
import logging
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import anyio

from .._acceptor import Acceptor
from .._handler import takes_context
from .._limits import Complaint, explain
from .._live import add_server, remove_server
from .._serve import ServerStatistics
from .._service import NativeService
from ._budget import ThreadBudget, TotalBudget
from ._connection import Connection
from ._private_loop import LoopThread
from ._worker import Job, Worker

if TYPE_CHECKING:
    from .._bootstrap import Established
    from .._options import ListenOptions
    from .._region import Region
    from ..abc import Buffer

logger = logging.getLogger("l5.server")

THREADS_MAX = 1024


def serve(
    handler: Callable[..., Buffer] | Callable[[Connection], None],
    *urls: str,
    per: Literal["request", "connection"] = "request",
    threads: int = 1,
    **options: Any,
) -> Server:
    """Return a server for `urls`, started by ``with`` and stopped when the block is left.

    Each connection has a thread of its own, so `handler` may block.  It takes a request (`bytes`, a
    private copy) and returns the answer (any buffer), and may take an `l5.RequestContext` as its
    second argument; what it raises reaches the client as `RequestFailed`.  The requests of one
    connection are handled one after another, or by up to `threads` threads at once.  With
    ``per="connection"`` it is a function of a `Connection`, which is closed when it returns.
    Options stand in the URLs' queries or are keywords (see `l5.ListenOptions`);
    ``connections_max`` bounds the number of threads.

    Leaving the block stops accepting, lets running requests finish within ``grace`` seconds, and
    closes; a thread whose handler does not return is left behind and does not keep the interpreter
    from ending.  Raises `AddressError` here, `OSError` when the block is entered and a URL is
    taken.
    """
    if per not in ("request", "connection"):
        raise ValueError(f"per={per!r}: a server is per 'request' or per 'connection'")
    if not 1 <= threads <= THREADS_MAX:
        raise ValueError(f"threads={threads!r}: 1 to {THREADS_MAX} for each connection")
    if isinstance(handler, NativeService):
        raise TypeError("a native service has threads of its own: give it to l5.serve")
    if not callable(handler):
        raise TypeError(f"a handler is a function of a {per}, not {handler!r}")
    if inspect.iscoroutinefunction(handler):
        raise TypeError("an async handler needs an event loop: give it to l5.serve")
    return Server(handler, urls, per, threads, options)


class Server:
    """A running server; made by `serve`."""

    def __init__(
        self,
        handler: Callable[..., Any],
        urls: Sequence[str],
        per: str,
        threads: int,
        options: dict[str, Any],
    ) -> None:
        context = per == "request" and takes_context(handler)
        self._acceptor = Acceptor(urls, options)
        self._per = per
        self._job = Job(handler, context, threads)
        self._dropped = Complaint(logger)
        self._total = TotalBudget(self._acceptor.options.total_reassembly_bytes)
        self._guard = threading.Lock()
        self._threads: dict[threading.Thread, Worker | Connection | None] = {}
        self._closed = threading.Event()
        self._news: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._loop: LoopThread | None = None
        self._connections_total = 0
        self._answered_before = 0

    # ---- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Server:
        loop = LoopThread("l5 accepting")
        try:
            loop.call(self._acceptor.open)
            loop.start(self._acceptor.run, self._on_established)
        except BaseException:
            loop.stop()
            raise
        self._loop = loop
        add_server(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(None if exc_value is None else 0.0)

    def stop(self, grace: float | None = None) -> None:
        """Stop accepting, let running requests finish within `grace` seconds, close everything.

        Any thread may call it, any number of times; a handler that does is not waited
        for, and its answer is still sent.
        """
        seconds = self._acceptor.options.grace if grace is None else grace
        ends = monotonic() + seconds
        loop, self._job.draining = self._loop, True
        try:
            if loop is not None:
                loop.call(self._stop_accepting)
        except RuntimeError:
            return  # it has been stopped
        try:
            for end in self._ends():
                end.end() if isinstance(end, Worker) else end.close()
            self._join(ends)
        finally:
            for end in self._ends(but=threading.current_thread()):
                if isinstance(end, Worker):
                    end.cut()
            if loop is not None:
                with suppress(RuntimeError):
                    loop.call(self._close_exports)
                loop.stop()
            remove_server(self)
            self._closed.set()
            self._news.put(0)

    async def _stop_accepting(self) -> None:
        self._acceptor.close()

    # ---- memory --------------------------------------------------------------------------------

    def export(self, name: str, region: Region) -> None:
        """Let clients open `region` by `name`, as `l5.Server.export` does, which see.

        Any thread may call it while the server runs, and close the region; RuntimeError otherwise.
        """
        self._running_loop().call(self._add_export, name, region)

    def revoke(self, name: str) -> None:
        """Take back what `export` gave: see `l5.Server.revoke`."""
        self._running_loop().call(self._remove_export, name)

    def _running_loop(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("this server has not been started: use it in a `with` statement")
        return self._loop

    async def _add_export(self, name: str, region: Region) -> None:
        """(In the accepting thread, which the exports belong to) export."""
        exports = self._acceptor.exports
        exports.add(name, region)
        export = exports.find(name)
        revoke, loop = export.on_close, self._running_loop()

        async def revoke_there() -> None:
            revoke()

        def on_close() -> None:
            with suppress(RuntimeError):  # it has been stopped, and all is revoked
                loop.call(revoke_there)

        region.on_close[region.on_close.index(revoke)] = export.on_close = on_close

    async def _remove_export(self, name: str) -> None:
        self._acceptor.exports.remove(name)

    async def _close_exports(self) -> None:
        self._acceptor.exports.close()

    def _ends(self, but: threading.Thread | None = None) -> list[Worker | Connection]:
        with self._guard:
            found = [end for thread, end in self._threads.items() if thread is not but]
        return [end for end in found if end is not None]

    def _join(self, ends: float) -> None:
        with self._guard:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - monotonic()))

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the server has been stopped; False after `timeout` seconds."""
        return self._closed.wait(timeout)

    def serve_forever(self) -> None:
        """Serve until the process gets SIGINT or SIGTERM, then stop as `stop` does.

        For programs whose only work this is: Ctrl-C ends them without a traceback, after running
        requests have had their ``grace`` seconds.  A second signal ends that wait.  Returns also
        when the server is stopped otherwise.  In another thread than the main one, which gets no
        signals, it only waits.
        """
        if threading.current_thread() is not threading.main_thread():
            self.wait_closed()
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        grace = None
        try:
            while not self._closed.is_set():
                number = self._news.get()
                if number:
                    logger.info("%s: stopping", signal.Signals(number).name)
                    threading.Thread(target=self.stop, args=(grace,), daemon=True).start()
                    grace = 0.0
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        del frame
        self._news.put(number)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach this server (with the real ports)."""
        return self._acceptor.urls

    def statistics(self) -> ServerStatistics:
        """Return the counters as an immutable value; a handler is `running` if not called by C."""
        job = self._job
        with self._guard:
            workers = [end for end in self._threads.values() if isinstance(end, Worker)]
            answered = self._answered_before + sum(worker.answered for worker in workers)
            threads = len(self._threads)
        with job.guard:
            return ServerStatistics(
                connections=self._acceptor.connections,
                connections_total=self._connections_total,
                rejected=self._acceptor.rejected,
                requests=job.requests + answered,
                failed=job.failed,
                cancelled=job.cancelled,
                running=job.running,
                workers=threads,
            )

    # ---- connections ---------------------------------------------------------------------------

    async def _on_established(self, made: Established, options: ListenOptions) -> None:
        """(In the accepting thread) give a connection to a thread of its own."""
        self._connections_total += 1
        thread = threading.Thread(
            target=self._run, args=(made, options), name="l5 connection", daemon=True
        )
        with self._guard:
            refused = self._job.draining
            if not refused:
                self._threads[thread] = None
        try:
            if not refused:
                thread.start()
                return
        except RuntimeError as error:
            logger.warning("a connection was turned away: %s", error)
            with self._guard:
                del self._threads[thread]
        made.close()
        self._acceptor.left(made)

    def _run(self, made: Established, options: ListenOptions) -> None:
        """(In its thread) serve one connection."""
        thread = threading.current_thread()
        budget = ThreadBudget(options.reassembly_bytes, self._total)
        end: Worker | Connection | None = None
        try:
            if self._per == "connection":
                end = Connection(made, options, budget)
                end._tell_client()  # pyright: ignore[reportPrivateUsage]
                self._begin(thread, end)
                self._run_connection(end)
            else:
                end = Worker(self._job, made, options, budget)
                self._begin(thread, end)
                end.run()
        except OSError as error:
            self._dropped.say("a connection from %s is dropped: %s", made.peer, explain(error))
        except Exception:
            logger.exception("the thread of a connection failed by an error of our own")
        finally:
            with self._guard:
                del self._threads[thread]
                if isinstance(end, Worker):
                    self._answered_before += end.answered
            self._left(made)

    def _begin(self, thread: threading.Thread, end: Worker | Connection) -> None:
        with self._guard:
            self._threads[thread] = end
            draining = self._job.draining
        if draining and isinstance(end, Connection):
            end.close()  # `stop` has not seen it

    def _run_connection(self, connection: Connection) -> None:
        try:
            with connection:
                self._job.handler(connection)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.debug("a connection ended: %r", error)
        except Exception:
            logger.exception("the handler of a connection raised; the connection is closed")

    def _left(self, made: Established) -> None:
        async def left() -> None:
            self._acceptor.left(made)

        if self._loop is not None:
            self._loop.tell(left)
