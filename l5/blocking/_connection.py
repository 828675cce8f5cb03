"""`Connection`: the engine of `l5.Connection`, run in the calling thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from .. import _connection, _transmit
from .._connect import establish, no_room
from .._flow import Budget
from .._frames import Kind
from .._heartbeat import tell_client
from .._session import Session
from .._wait import Waiter
from . import _asleep, _in_place, _private_loop
from ._budget import ThreadBudget
from ._file import ConnectionFile
from ._hub import OWN_ERRORS, BlockingHub, Expired, busy, expiry
from ._in_place import Lease, ReplyStream, Reservation
from ._regions import OpensRegions

if TYPE_CHECKING:
    from .._bootstrap import Established
    from .._heartbeat import Heartbeat
    from .._options import Options
    from .._requests import Request
    from .._selector import UpgradeReport
    from .._statistics import ConnectionStatistics
    from .._waiter import OwnRequest
    from ..abc import Buffer, PeerInfo

T = TypeVar("T")


def connect(url: str, **options: Any) -> Connection:
    """Connect to `url` and upgrade to the best transport that both ends have.

    As `l5.connect`, with the same URLs, options (`l5.Options`) and errors; ``connect_timeout``
    bounds it.
    """
    made, chosen = _private_loop.run(establish, url, options)
    try:
        connection = Connection(made, chosen, Budget(chosen.reassembly_bytes))
    except OSError as error:
        raise no_room(url, error) from error
    connection._dial = (url, chosen, made.identity)
    return connection


class _Engine(_connection.Connection):
    """What the coroutines belong to; never left unclosed by itself."""

    def __del__(self) -> None:
        pass


class Connection(OpensRegions):
    """A connection that carries messages and requests, without an event loop.

    Any number of threads may use it at once (but one `receive` at a time): requests of several
    threads are in flight together, one thread may receive while another sends, and `close` wakes
    them all.  Nothing happens between calls: what the peer sends waits in its ring or socket.

    Every call that waits takes a `timeout` in seconds (None: for ever; 0: only look) and raises
    `TimeoutError` when it is over: a timed-out `receive` took no message, a timed-out `send` sent
    nothing, a timed-out `request` is cancelled at the peer.  After any error, and after an
    exception of a signal handler such as `KeyboardInterrupt`, the connection is sound or broken.
    """

    def __init__(self, made: Established, options: Options, budget: Budget) -> None:
        ring = getattr(made.channel, "ring", None)
        self._hub = BlockingHub(ring)
        self._session = Session(self._hub, made, options, budget)
        self._hub.session = self._session
        if isinstance(budget, ThreadBudget):  # a server's or listener's
            self._session.role = "server"
            self._hub.budget, budget.hub = budget, self._hub
        self._engine = _Engine(self._session)
        self._lock = self._hub.lock
        self._ring = ring
        self._sleep_for_answer = self._sleep_for_data = None
        if ring is not None and not options.strict:
            self._sleep_for_answer, self._sleep_for_data = _asleep.sleeps_of(self._hub, ring)
        self._fast_request: Callable[[Any], Any] = ring.request if ring else self._start_request
        self._fast_send: Callable[[Any], Any] = ring.send if ring else _not_sent

    def _tell_client(self) -> None:
        """(Of a server, in its thread) let the client hear how busy this thread is."""
        tell_client(self._session)

    def __repr__(self) -> str:
        session = self._session
        return f"<l5.blocking.Connection {session.channel.transport} {session.state.lower()}>"

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.state == "OPEN":
            warnings.warn(f"unclosed connection {self!r}", ResourceWarning, 2, source=self)
            try:
                session.close()
            except Exception:
                pass  # the interpreter is ending

    # ---- facts -----------------------------------------------------------------------------------

    @property
    def transport(self) -> str:
        """Name of the transport in use, such as ``"shm"``."""
        return self._engine.transport

    @property
    def peer(self) -> PeerInfo:
        """What is known about the other end."""
        return self._engine.peer

    @property
    def upgrade_report(self) -> UpgradeReport:
        """Which transport was chosen, and why each other one was not."""
        return self._engine.upgrade_report

    @property
    def max_message_bytes(self) -> int:
        """Size of the largest message that may be sent."""
        return self._engine.max_message_bytes

    @property
    def heartbeat(self) -> Heartbeat:
        """What the server said last of how busy it is; keep it to ask often."""
        return self._engine.heartbeat

    @property
    def closed(self) -> bool:
        """Tell whether this end has been closed."""
        return self._session.state == "CLOSED"

    def statistics(self) -> ConnectionStatistics:
        """Return the counters as an immutable value."""
        return self._engine.statistics()

    # ---- running the engine ---------------------------------------------------------------------

    def _run(
        self,
        steps: Coroutine[Any, Any, T],
        expires: float | None,
        what: str,
        lost: Callable[[T], object] | None = None,
    ) -> T:
        try:
            return self._hub.run(steps, expires, lost)
        except Expired:
            pass
        raise TimeoutError(f"{what} was not possible within its timeout")

    def _fault(self, error: BaseException, asked: OwnRequest | None = None) -> BaseException:
        """(With the lock) return what to raise when a hot call raised, or was interrupted."""
        session = self._session
        if asked is not None:
            _asleep.give_up(asked, self._hub, session)
        if isinstance(error, Exception) and isinstance(error, (*OWN_ERRORS, OSError)):
            return self._engine._explain(error)  # pyright: ignore[reportPrivateUsage]
        if self._ring is None:
            self._hub.spoil(error)
            return error
        if session.state == "OPEN" and session.window.in_flight > len(session.requests):
            # The request was sent, and its number got lost on the way up: it is the last one.
            request = session.requests.open(session.window.next_id - 1, Waiter())
            session.requests.abandon(request)
            session.post(Kind.CANCEL, 0, request.id)
        return error

    # ---- requests ------------------------------------------------------------------------------

    def request(
        self, payload: Buffer, *, deadline: float | None = None, timeout: float | None = None
    ) -> bytes:
        """Send a request and return its answer; any number of threads may do so at once.

        `deadline` is in seconds from now and travels with the request, `timeout` concerns this call
        alone.  Raises `RequestFailed` when the peer's handler raised, `DeadlineExceeded`,
        `TimeoutError`, `MessageTooLarge`, `anyio.BrokenResourceError` when the connection broke
        before the answer came (the request may have been executed), `anyio.ClosedResourceError`.
        Late or interrupted, the peer is told, and a late answer is dropped and counted.
        """
        if deadline is not None:
            steps = self._engine._request_until(payload, deadline)  # pyright: ignore
            return self._run(steps, expiry(timeout), "an answer")
        expires = None if timeout is None else expiry(timeout)
        request = None
        with self._lock:
            try:
                reply = self._fast_request(payload)
                if type(reply) is bytes:
                    return reply
                if type(reply) is tuple:
                    self._hub.count_anew()
                    return cast("tuple[bytes]", reply)[0]
                if reply is not None:
                    session = self._session
                    request = _asleep.note(self._hub, session, reply)
                    sleep = self._sleep_for_answer
                    if sleep is not None:
                        reply = _asleep.answer_to(request, self._hub, session, sleep, expires)
                        if reply is not None:
                            return reply
            except BaseException as error:
                raise self._fault(error, request) from None
        return self._request_on(payload, request, expires)

    def _start_request(self, payload: Any) -> int | None:
        """Do what a ring's hot call does, for other channels."""
        return None if self._hub.inside else _transmit.start_request(self._session, payload)

    def _request_on(self, payload: Buffer, request: Request | None, expires: float | None) -> bytes:
        engine = self._engine
        if request is None:
            view = _transmit.as_bytes_view(payload)
            steps = engine._request_anew(view, 0)  # pyright: ignore[reportPrivateUsage]
        elif request.done:  # another thread has taken its answer
            return request.result()
        else:
            steps = engine._await_answer(request)  # pyright: ignore[reportPrivateUsage]
        return self._run(steps, expires, "an answer")

    def request_stream(
        self, payload: Buffer, *, deadline: float | None = None, timeout: float | None = None
    ) -> ReplyStream:
        """Send a request and iterate over the pieces of its answer as they come.

        Use as ``with conn.request_stream(q) as pieces: for piece in pieces``.  `timeout` is for
        each wait: to send, and for the next piece; a piece that came too late is not lost.  At most
        ``credit_bytes`` wait here, then the server waits.  Leaving early cancels.
        """
        return ReplyStream(self, payload, deadline, timeout)

    # ---- messages ------------------------------------------------------------------------------

    def send(self, item: Buffer | Sequence[Buffer], *, timeout: float | None = None) -> None:
        """Send a message: any contiguous buffer, or a sequence of buffers that are joined.

        Waits while the peer's window or the transport is full.  Raises `TimeoutError` and
        `MessageTooLarge` (nothing was sent), `anyio.BrokenResourceError`,
        `anyio.ClosedResourceError`.
        """
        if isinstance(item, list | tuple):
            item = b"".join(_transmit.as_bytes_view(part) for part in item)
        with self._lock:
            try:
                sent = self._fast_send(item)
                if sent:
                    return
                if sent is None:
                    self._hub.count_anew()
                    return
            except BaseException as error:
                raise self._fault(error) from None
        expires = expiry(timeout)
        data = _transmit.as_bytes_view(item)  # type: ignore[arg-type]
        steps = self._engine._accept_data(data)  # pyright: ignore[reportPrivateUsage]
        self._run(steps, expires, "sending")
        self._flush(expires)

    def _flush(self, expires: float | None) -> None:
        """Push out what was accepted; if there is no time for it, the next call goes on with it."""
        if self._session.channel.wants_write:
            try:
                self._hub.run(_transmit.flush(self._session), expires)
            except Expired:
                pass

    def request_many(
        self, payloads: Sequence[Buffer], *, window: int = 64, timeout: float | None = None
    ) -> list[bytes]:
        """Send requests of which up to `window` are in flight; return the answers in their order.

        As `l5.Connection.request_many`; `TimeoutError` abandons those that are not answered.
        """
        steps = self._engine.request_many(payloads, window=window)
        return self._run(steps, expiry(timeout), "request_many")

    def receive(self, *, timeout: float | None = None) -> bytes:
        """Return the next message; `TimeoutError` after `timeout` seconds without one.

        Raises `anyio.EndOfStream` after the last message of a peer that closed,
        `anyio.BrokenResourceError`, `anyio.ClosedResourceError`, `anyio.BusyResourceError` when
        another thread receives already.
        """
        expires = None if timeout is None else expiry(timeout)
        message = None if self._ring is None else _asleep.receive(self, self._ring, expires)
        if message is not None:
            return message
        steps = self._engine._receive_on()  # pyright: ignore[reportPrivateUsage]
        return self._run(steps, expires, "receiving", self._give_back)

    def _explain_fault(self, error: BaseException) -> None:
        explained = self._fault(error)  # breaks the session if need be: going on says how
        if not isinstance(explained, Exception):
            raise explained

    def _give_back(self, message: bytes) -> None:
        """(With the lock) let the next `receive` return it."""
        self._session.inbox.appendleft(message)
        self._session.untaken += 1

    def __iter__(self) -> Connection:
        return self

    def __next__(self) -> bytes:
        try:
            return self.receive()
        except anyio.EndOfStream:
            raise StopIteration from None

    def send_eof(self, *, timeout: float | None = None) -> None:
        """Tell the peer that no more messages come; receiving, and requests, go on."""
        self._run(self._engine.send_eof(), expiry(timeout), "send_eof")
        self._fast_send = _not_sent

    # ---- in place ------------------------------------------------------------------------------

    def receive_into(self, buffer: Buffer, *, timeout: float | None = None) -> int:
        """Receive the next message into a writable buffer; return its size.

        See `l5.Connection.receive_into`.  After a `TimeoutError` no message was taken.
        """
        return _in_place.receive_into(self, buffer, timeout)

    def lease(self, *, timeout: float | None = None) -> Lease:
        """Read the next message in place: ``with conn.lease() as message: message.view``.

        See `l5.Connection.lease`.  `TimeoutError` when the block cannot be entered in time.
        """
        return Lease(self, timeout)

    def reserve(self, size_bytes: int, *, timeout: float | None = None) -> Reservation:
        """Write a message in place: ``with conn.reserve(n) as slot``.

        Fill ``slot.view``, release views, then ``slot.send()`` or ``reply = slot.request()``.
        Leaving without either discards.  While it is open, nothing else can be sent on this
        connection; other threads wait.
        """
        return Reservation(self, size_bytes, timeout)

    def as_file(self) -> ConnectionFile:
        """Return a raw binary file over this connection, for code that reads and writes bytes."""
        return ConnectionFile(self)

    # ---- ends ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close: what was sent before is delivered, open calls fail.

        Any thread may do so at any time; a signal handler, too, unless it came in while the engine
        was at work and not waiting (`anyio.BusyResourceError`).
        """
        if self._session.state == "CLOSED":
            return
        if not self._hub.calls_here():
            self._hub.run(self._engine.aclose())
            return
        with self._lock:  # in a signal handler, on top of a call that waits: at once
            if self._hub.inside:
                raise busy()
            self._session.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _not_sent(_: Any) -> bool:
    return False
