"""One connection of a request server: its thread receives, calls the handler and answers.

With one thread (the usual case) the whole round is one call into C for as many requests as come:
scan the ring, call the handler, answer, spin, scan again.  With more threads each takes one request
at a time, and those that wait take turns in receiving.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import anyio
import attrs

from .. import _transmit
from .._errors import L5Error, MessageTooLarge
from .._frames import Kind
from .._handler import RequestContext, words_of
from .._heartbeat import tell_client
from .._latency import end
from .._service_values import HandlerError
from .._session import Session
from .._transmit import MessageCancelled
from .._wait import Waiter
from ._beats import ThreadBeats
from ._hub import BlockingHub

if TYPE_CHECKING:
    from .._bootstrap import Established
    from .._options import ListenOptions
    from ._budget import ThreadBudget

logger = logging.getLogger("l5.server")


@attrs.define(eq=False)
class Job:
    """What one server does with every request, and what became of them."""

    handler: Callable[..., Any]
    context: bool
    threads: int
    draining: bool = False
    guard: threading.Lock = attrs.field(factory=threading.Lock)
    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0


@attrs.frozen
class _Request:
    id: int
    payload: bytes
    expires: float | None

    def left(self) -> float | None:
        return None if self.expires is None else self.expires - monotonic()


class Worker:
    """See the module's docstring; it is the request server of its one session."""

    reads_lanes: bool = False

    def __init__(
        self, job: Job, made: Established, options: ListenOptions, budget: ThreadBudget
    ) -> None:
        self._job = job
        ring = getattr(made.channel, "ring", None)
        self._hub = BlockingHub(ring)
        self._session = Session(self._hub, made, options, budget, self)
        self._hub.session = self._session
        self._hub.budget, budget.hub = budget, self._hub
        self._hub.on_wake = self._on_wake
        self._beats = ThreadBeats(self._hub, job.threads) if job.threads > 1 else None
        self._hub.beats = self._beats
        tell_client(self._session)
        self._ready: deque[_Request] = deque()
        self._idle: dict[Waiter, None] = {}

    @property
    def answered(self) -> int:
        """How many requests were answered in C."""
        ring = self._session.ring
        return 0 if ring is None else ring.answered

    # ---- what the session reports ----------------------------------------------------------------

    def on_request(
        self, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """See `RequestServer.on_request`."""
        if self._job.draining:
            session.reply_error(id, "ServerClosing", "this server is being stopped")
            return
        expires = None if deadline_us is None else monotonic() + deadline_us / 1e6
        self._ready.append(_Request(id, payload, expires))
        for waiter in self._idle:
            if not waiter.ready:
                waiter.wake()
                return

    def on_news(self) -> bool:
        """See `RequestServer.on_news`: its thread is the only one in its loop."""
        return False

    def on_cancel(self, session: Session, id: int) -> None:
        """See `RequestServer.on_cancel`: a handler that runs in a thread is let finish."""
        for request in self._ready:
            if request.id == id:
                self._ready.remove(request)
                self._count(cancelled=1)
                session.reply_error(id, "Cancelled", "the client cancelled before it was started")
                return

    def on_end(self, session: Session) -> None:
        """See `RequestServer.on_end`: nobody waits for these answers any more."""
        del session
        self._ready.clear()
        for waiter in self._idle:
            waiter.wake()

    def _count(self, *, requests: int = 0, failed: int = 0, cancelled: int = 0) -> None:
        job = self._job
        with job.guard:
            job.requests += requests
            job.failed += failed
            job.cancelled += cancelled

    # ---- the threads -----------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the connection ends or the server drains, then close it."""
        try:
            if self._job.threads == 1:
                self._serve_alone()
            else:
                self._serve_together()
        except (OSError, L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.debug("a connection ended: %r", error)
        finally:
            self._hub.run(self._close())

    async def _close(self) -> None:
        self._session.close()

    def end(self) -> None:
        """(Any thread, a handler too) notice that the server drains before the next request."""
        if self._hub.poller is not None:
            self._hub.poller.overdue = 1
        self._hub.wake()

    def cut(self) -> None:
        """(Any thread) end the connection although a handler still runs: the grace is over."""
        with self._hub.lock:  # a handler runs without it
            if self._session.state != "OPEN":
                return
            with suppress(OSError), socket.socket(fileno=os.dup(self._session.fds()[0])) as sock:
                sock.shutdown(socket.SHUT_RDWR)

    def _serve_alone(self) -> None:
        hub, job, session = self._hub, self._job, self._session
        handler = None if job.context else job.handler
        while session.state == "OPEN" and not (job.draining and not self._ready):
            if self._ready:
                self._handle(self._ready.popleft())
                continue
            found: Any = None
            if hub.poller is not None and (hub.poller.count or hub.poller.spots):
                found = hub.poller.serve(self, handler)
            if type(found) is tuple:
                self._go_on(*cast("tuple[str, Any, int, Any, Any]", found))
            elif found is True:
                hub.run(hub.breathe())
            elif found is not None:
                session.on_ready()
                if found.server is not self:  # a tap's, and there may be a frame each time
                    hub.run(hub.breathe())
            else:
                hub.run(self._wait(Waiter(self)))
        session.on_ready()  # refuses what came meanwhile

    def _serve_together(self) -> None:
        others = [
            threading.Thread(target=self._serve_one_of_many, name="l5 handler", daemon=True)
            for _ in range(self._job.threads - 1)
        ]
        for thread in others:
            thread.start()
        try:
            self._serve_one_of_many()
        finally:
            for thread in others:
                self._hub.run(self._wake_idle())
                thread.join()

    async def _wake_idle(self) -> None:
        for waiter in self._idle:
            waiter.wake()

    def _serve_one_of_many(self) -> None:
        job, session = self._job, self._session
        with suppress(L5Error, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while session.state == "OPEN":
                request = self._hub.run(self._next())
                if request is not None:
                    self._handle(request)
                elif job.draining:
                    return

    async def _next(self) -> _Request | None:
        if self._beats is not None:
            self._beats.look()
        if not self._ready:
            await self._wait(Waiter())
        return self._ready.popleft() if self._ready else None

    async def _wait(self, waiter: Waiter) -> None:
        if self._job.draining or self._session.state != "OPEN":
            return
        self._idle[waiter] = None
        try:
            await self._hub.park(waiter, spun=waiter.server is not None)
        finally:
            del self._idle[waiter]

    def _on_wake(self) -> None:
        if self._job.draining:
            for waiter in self._idle:
                waiter.wake()

    # ---- one request -----------------------------------------------------------------------------

    def _go_on(self, what: str, ring: Any, id: int, first: Any, second: Any) -> None:
        """Take a request over from `Poller.serve`, which got as far as `what` says."""
        del ring, second
        if what == "request":
            self._handle(_Request(id, first, None))
        elif what == "suspended":
            first.close()
            self._fail(id, TypeError(_ASYNC_HANDLER))
        elif what == "returned":
            self._reply(id, first)
        elif what == "raised":
            self._fail(id, first)
        else:
            self._not_answered(id, first)

    def _handle(self, request: _Request) -> None:
        job, id = self._job, request.id
        left = request.left()
        if left is not None and left <= 0:
            self._count(requests=1, cancelled=1)
            self._post_error(id, "DeadlineExceeded", "it had to wait for too long")
            return
        watch = self._session.watch
        begun_ns = watch.begin() if watch is not None else 0
        with job.guard:
            job.running += 1
        try:
            reply = self._call(request, left)
        except BaseException as error:
            self._fail(id, error)
        else:
            self._reply(id, reply)
        finally:
            with job.guard:
                job.running -= 1
                if begun_ns:
                    end(self._session.watch, begun_ns)

    def _call(self, request: _Request, left: float | None) -> Any:
        job, session = self._job, self._session
        with nullcontext() if self._beats is None else self._beats.handling():
            if job.context:
                context = RequestContext(session.peer, session.channel.transport, request.id, left)
                return job.handler(request.payload, context)
            return job.handler(request.payload)

    def _reply(self, id: int, reply: Any) -> None:
        if reply is None or isinstance(reply, str | int | float):
            kind = "None" if reply is None else type(reply).__name__
            problem = f"the request handler returned {kind}; it must return bytes or another buffer"
            self._fail(id, TypeError(problem))
        elif hasattr(reply, "__await__"):
            getattr(reply, "close", int)()
            self._fail(id, TypeError(_ASYNC_HANDLER))
        else:
            try:
                view = _transmit.as_bytes_view(reply)
                _transmit.check_size(self._session, len(view))
                self._hub.run(self._send(id, view))
            except Exception as error:
                self._not_answered(id, error)
            else:
                self._count(requests=1)

    async def _send(self, id: int, view: memoryview) -> None:
        session = self._session
        await _transmit.accept_message(session, Kind.RESPONSE, 0, id, view)
        session.window.handling -= 1
        session.answered += 1
        await _transmit.flush(session)

    def _not_answered(self, id: int, error: Exception) -> None:
        if self._session.state != "OPEN":
            return
        if isinstance(error, MessageCancelled):
            self._count(cancelled=1)
            self._post_error(id, "Cancelled", "the client cancelled while it was answered")
        elif isinstance(error, MessageTooLarge | TypeError | BufferError | ValueError):
            self._fail(id, error)
        else:
            self._hub.run(self._break(error))

    async def _break(self, error: Exception) -> None:
        self._session.fail(error)

    def _fail(self, id: int, error: BaseException) -> None:
        self._count(requests=1, failed=1)
        if not isinstance(error, HandlerError):
            logger.warning("a request handler raised %r", error, exc_info=error)
        self._post_error(id, *words_of(error))

    def _post_error(self, id: int, type_name: str, message: str) -> None:
        self._hub.run(self._reply_error(id, type_name, message))

    async def _reply_error(self, id: int, type_name: str, message: str) -> None:
        if self._session.state == "OPEN":
            self._session.answered += 1
            self._session.reply_error(id, type_name, message)


_ASYNC_HANDLER = "the request handler is async: l5.serve takes it, l5.blocking.serve plain ones"
