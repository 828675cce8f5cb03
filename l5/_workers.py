"""Workers: tasks that take requests, of which exactly one leads at a time.

The leader scans the rings of all connections, calls the handler inline and answers, all of it in
one call into C for as many requests as the event loop may wait for.  Only when a handler suspends
does the leader step aside, so that a standby goes on with the other requests; a handler that does
not suspend costs no task switch.  (Leader/follower, as in thread pools.)  A worker has one cancel
scope for all its requests, entered once: cancelling a request cancels the scope of the worker that
runs it, which then enters a new one.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import anyio
import anyio.abc

from . import _handler, _transmit
from ._frames import Kind
from ._handler import Request, Worker, awaited, resume, settled, step, takes_context, words_of
from ._latency import end
from ._service import HandlerError
from ._session import Session
from ._transmit import MessageCancelled
from ._wait import Hub, Waiter

logger = logging.getLogger("l5.server")
STANDBYS_MAX = 64  # workers that wait idle; more than these end when they have nothing to do


class Workers:
    """The request server of the sessions that have it as their `server`.

    `plain` handlers are a native service's: ``handler(payload, deadline_ns=...)``.
    """

    def __init__(self, handler: Any, hub: Hub, group: anyio.abc.TaskGroup, *, plain: bool) -> None:
        self._handler = handler
        self._plain = plain
        self._context = not plain and takes_context(handler)
        self._hub = hub
        self._group = group
        self._ready: deque[Request] = deque()
        self._workers: dict[Worker, None] = {}
        self._standbys: list[Worker] = []
        self._leader: Worker | None = None
        self._idle_waiter: Waiter | None = None
        self._drained: anyio.Event | None = None
        self._draining = False
        self.reads_lanes: bool = True
        self.requests = self.failed = self.cancelled = 0

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def running(self) -> int:
        """How many handlers are suspended now."""
        return sum(one.session is not None for one in list(self._workers))

    async def drain(self, grace: float) -> None:
        """Refuse new requests; wait up to `grace` seconds for those that run."""
        self._draining = True
        self._drained = anyio.Event()
        with anyio.move_on_after(grace):
            while self._ready or self.running:
                await self._drained.wait()
                self._drained = anyio.Event()

    def _note_drained(self) -> None:
        if self._drained is not None and not self._ready and not self.running:
            self._drained.set()

    # ---- what sessions report --------------------------------------------------------------------

    def on_request(
        self, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """See `RequestServer.on_request`."""
        if self._draining:
            session.reply_error(id, "ServerClosing", "this server is being stopped")
            return
        self._ready.append((session, id, payload, deadline_us))
        self.on_news()

    def on_news(self) -> bool:
        """Wake the leader for what is here, or where it looks itself; False: there is none."""
        if self._idle_waiter is not None:
            self._idle_waiter.wake()
        return self._leader is not None

    def on_cancel(self, session: Session, id: int) -> None:
        """See `RequestServer.on_cancel`."""
        for request in self._ready:
            if request[0] is session and request[1] == id:
                self._ready.remove(request)
                self.cancelled += 1
                session.reply_error(id, "Cancelled", "the client cancelled before it was started")
                self._note_drained()
                return
        for worker in self._workers:
            if worker.session is session and worker.id == id:
                self._cancel(worker, "Cancelled")

    def on_end(self, session: Session) -> None:
        """See `RequestServer.on_end`: nobody waits for these answers any more."""
        for request in [r for r in self._ready if r[0] is session]:
            self._ready.remove(request)
        for worker in self._workers:
            if worker.session is session:
                self._cancel(worker, "Ended")
        self._note_drained()

    def _cancel(self, worker: Worker, reason: str) -> None:
        if worker.scope is not None:
            worker.reason = reason
            worker.scope.cancel()

    # ---- workers ---------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """Add a task that takes requests; the first one leads."""
        worker = Worker(Waiter(self))
        self._workers[worker] = None
        self._group.start_soon(self._work, worker)

    async def _work(self, worker: Worker) -> None:
        try:
            while True:
                with anyio.CancelScope() as worker.scope:
                    await self._take_turns(worker)
                    return
                self._answer_cancelled(worker)
        finally:
            del self._workers[worker]
            if self._leader is worker:
                self._leader = None

    def _answer_cancelled(self, worker: Worker) -> None:
        """The scope was cancelled: by the client, by the deadline, or by the session's end."""
        session, reason = worker.session, worker.reason or "DeadlineExceeded"
        worker.session, worker.reason = None, ""
        if session is not None and session.state == "OPEN":
            self.cancelled += 1
            self.requests += 1
            session.answered += 1
            session.reply_error(worker.id, reason, "the handler was cancelled")
        self._note_drained()

    async def _take_turns(self, worker: Worker) -> None:
        """Lead whenever nobody does; return when there are standbys enough."""
        while True:
            if self._leader is None:
                self._leader = worker
                try:
                    await self._lead(worker)
                finally:
                    if self._leader is worker:
                        self._leader = None
                        self._call_standby()
                continue
            if len(self._standbys) >= STANDBYS_MAX:
                return
            worker.wakeup = anyio.Event()
            self._standbys.append(worker)
            try:
                await worker.wakeup.wait()
            finally:
                if worker in self._standbys:
                    self._standbys.remove(worker)

    def _call_standby(self) -> None:
        if self._group.cancel_scope.cancel_called:
            return
        if self._standbys:
            wakeup = self._standbys.pop().wakeup
            assert wakeup is not None
            wakeup.set()
        else:
            self.start_worker()

    def _step_aside(self, worker: Worker) -> None:
        """The leader is about to suspend: let somebody else go on with the requests."""
        if self._leader is worker:
            self._leader = None
            self._call_standby()

    async def _lead(self, worker: Worker) -> None:
        hub = self._hub
        handler, taken = None if self._context else self._handler, 0
        while self._leader is worker:
            if worker.suspended and _handler.was_cancelled(worker):
                await _handler.end_cancellation(worker)
            if self._ready and (taken := taken + 1) % _handler.IN_ROW_MAX:
                await self._handle(worker, *self._ready.popleft())
                continue
            found: Any = hub.poller and hub.poller.serve(self, handler, not self._ready)
            if type(found) is tuple:
                await self._go_on(worker, *cast("tuple[str, Any, int, Any, Any]", found))
            else:
                await self._look_around(worker, hub, found)

    async def _go_on(
        self, worker: Worker, what: str, ring: Any, id: int, first: Any, second: Any
    ) -> None:
        """Take a request over from `Poller.serve`, which got as far as `what` says."""
        session: Session | None = ring.session
        if what in ("raised", "unanswered"):
            first = settled(first)
        if session is None and what == "suspended":  # closed meanwhile
            _handler.throw_away(first)
        elif session is None:
            return
        elif what == "request":
            await self._handle(worker, session, id, first, None)
        elif what == "suspended":
            begun_ns = session.watch.begun_ns if session.watch else 0
            await self._finish(worker, session, id, first, second, None)
            end(session.watch, begun_ns)
        elif what == "returned":
            await self._reply_if_valid(worker, session, id, first)
        elif what == "raised":
            self._failed(session, id, first)
        else:
            self._not_answered(session, id, first)

    async def _look_around(self, worker: Worker, hub: Hub, found: Any) -> None:
        """Handle what `Poller.serve` gave when it was no request."""
        if found is True:
            await hub.breathe()
        elif found is not None:
            _transmit.receive_for(found)
            if found.server is not self or hub.due():
                await hub.breathe()  # tasks of other connections were woken: let them run
        elif not self._ready:
            self._idle_waiter = waiter = worker.waiter
            waiter.ready = False
            try:
                await hub.park(waiter, spun=True)
            finally:
                self._idle_waiter = None

    async def _call(
        self, worker: Worker, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """Run the handler and answer."""
        try:
            if self._context:
                result = self._handler(payload, _handler.context_of(session, id, deadline_us))
            elif self._plain and deadline_us is not None:
                result = self._handler(payload, deadline_ns=_handler.deadline_ns(deadline_us))
            else:
                result = self._handler(payload)
            done, steps = not hasattr(result, "__await__"), result
            if not done:
                steps = result if inspect.iscoroutine(result) else awaited(result)
                done, result = step(steps.send, None)
        except BaseException as error:
            self._failed(session, id, settled(error))
            return
        if done:
            await self._reply_if_valid(worker, session, id, result)
        else:
            await self._finish(worker, session, id, steps, result, deadline_us)

    async def _finish(
        self,
        worker: Worker,
        session: Session,
        id: int,
        steps: Any,
        yielded: Any,
        deadline_us: int | None,
    ) -> None:
        """Go on with a handler that has suspended, and answer."""
        try:
            with self._suspended(worker, session, id, deadline_us):
                reply = await resume(steps, yielded)
                await self._reply_if_valid(worker, session, id, reply)
        except Exception as error:
            self._failed(session, id, error)

    @contextmanager
    def _suspended(
        self, worker: Worker, session: Session, id: int, deadline_us: int | None
    ) -> Generator[None]:
        """Note what a worker runs while it is suspended, so that it can be cancelled."""
        scope = worker.scope
        assert scope is not None
        worker.session, worker.id, worker.suspended = session, id, True
        if deadline_us is not None:
            scope.deadline = anyio.current_time() + deadline_us / 1e6
        self._step_aside(worker)
        try:
            yield
        except Exception:
            worker.session = None
            raise
        else:
            worker.session = None  # after a cancellation it stays, for _answer_cancelled
        finally:
            scope.deadline = math.inf
            self._note_drained()
        if self._leader is None:
            self._leader = worker

    async def _handle(
        self, worker: Worker, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """Run one request that came through the generic path."""
        begun_ns = session.watch.begin() if session.watch else 0
        await self._call(worker, session, id, payload, deadline_us)
        self._note_drained()
        end(session.watch, begun_ns)
        if self._hub.due():
            await self._hub.breathe()

    async def _reply_if_valid(self, worker: Worker, session: Session, id: int, reply: Any) -> None:
        if reply is None or isinstance(reply, str | int | float):
            self._failed(session, id, _handler.no_answer(reply))
        elif hasattr(reply, "__await__"):
            await self._finish_awaitable(worker, session, id, reply)
        else:
            await self._reply(worker, session, id, reply)

    async def _finish_awaitable(
        self, worker: Worker, session: Session, id: int, awaitable: Any
    ) -> None:
        """(From the hot path) the handler returned something to be awaited that is no coroutine."""
        steps = awaited(awaitable)
        try:
            done, result = step(steps.send, None)
        except Exception as error:
            self._failed(session, id, error)
            return
        if done:
            await self._reply(worker, session, id, result)
        else:
            await self._finish(worker, session, id, steps, result, None)

    async def _reply(self, worker: Worker, session: Session, id: int, reply: Any) -> None:
        """Answer; a slow reader does not hold up the others."""
        try:
            view = _transmit.as_bytes_view(reply)
            _transmit.check_size(session, len(view))
        except BaseException as error:  # asking for its bytes may run code, as a handler's
            self._failed(session, id, settled(error))
            return
        try:
            if (
                len(view) > session.sends.segment_bytes
                or session.senders  # they were here before
                or not session.try_frame(Kind.RESPONSE, 0, id, view)
            ):
                await self._reply_slowly(worker, session, id, view)
            elif session.channel.wants_write:
                session.hub.touch(session)
        except Exception as error:
            self._not_answered(session, id, error)
        else:
            session.window.handling -= 1
            session.answered += 1
            self.requests += 1

    async def _reply_slowly(
        self, worker: Worker, session: Session, id: int, view: memoryview
    ) -> None:
        if worker.session is not None:
            await _transmit.accept_message(session, Kind.RESPONSE, 0, id, view)
            return
        with self._suspended(worker, session, id, None):
            await _transmit.accept_message(session, Kind.RESPONSE, 0, id, view)

    def _not_answered(self, session: Session | None, id: int, error: Exception) -> None:
        """An answer could not be sent: say so, or note that the connection is gone."""
        if session is None or session.state != "OPEN":
            return
        if isinstance(error, MessageCancelled):
            self.cancelled += 1
            session.reply_error(id, "Cancelled", "the client cancelled while it was answered")
        elif isinstance(error, _handler.NO_REPLY):
            self._failed(session, id, error)
        else:
            session.fail(error)

    def _failed(self, session: Session, id: int, error: Exception) -> None:
        self.failed += 1
        self.requests += 1
        session.answered += 1
        if not isinstance(error, HandlerError):
            logger.warning("a request handler raised %r", error, exc_info=error)
        if session.state == "OPEN":
            session.reply_error(id, *words_of(error))
