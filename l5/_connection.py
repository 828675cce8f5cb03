"""`Connection`: what users hold.  It tries, and parks in the hub when the session says not now."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.abc

from . import _many, _transmit
from ._errors import DeadlineExceeded, RemoteProtocolError
from ._farewell import leave
from ._flow import data_cost
from ._frames import DEADLINE, DEADLINE_US_MAX, Flag, Kind
from ._heartbeat import Heartbeat, heartbeat_of
from ._in_place import WorksInPlace
from ._memory_link import OpensRegions
from ._session import Session
from ._statistics import ConnectionStatistics, statistics_of
from ._streams import ConnectionByteStream, ReplyStream
from ._wait import Waiter
from ._waiter import note_sent

if TYPE_CHECKING:
    from ._requests import Request
    from ._selector import UpgradeReport
    from .abc import Buffer, PeerInfo


class Connection(OpensRegions, WorksInPlace, anyio.abc.ObjectStream[bytes]):
    """A connection that carries messages and requests, whatever it runs on.

    Any number of tasks of one event loop may use it at once (but one `receive` at a time).  A
    cancelled `receive` takes no message; a cancelled `send` sent all or nothing; a cancelled
    `request` disturbs no other.  After any error the connection is either sound or broken.
    `heartbeat` has what the server said last of how busy it is.

    A call that finds what it needs does not suspend; cancellation is honoured, and other tasks run,
    at least every 64 messages or 100 us of spinning (with the option ``strict`` at every call).
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        ring = session.ring
        self.heartbeat: Heartbeat = heartbeat_of(session)
        self._fast_request: Callable[[Any], Any] = _transmit.starter(session)
        self._fast_send: Callable[[Any], Any] = ring.send if ring else _transmit.not_sent
        self._fast_receive: Callable[[bool], Any] = ring.receive if ring else _transmit.not_fast
        self._fast_into: Callable[[Any, bool], Any] = (
            ring.receive_into if ring else _transmit.not_fast
        )

    def __repr__(self) -> str:
        return f"<l5.Connection {self.transport} {self._session.state.lower()}>"

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.state == "OPEN" and session.server is None:
            warnings.warn(f"unclosed connection {self!r}", ResourceWarning, 2, source=self)
            try:
                if session.hub.in_use_elsewhere():
                    session.hub.later(session.close)
                else:
                    session.close()
            except anyio.BusyResourceError:
                session.hub.later(session.release)  # in another thread its loop began to spin
            except Exception:
                pass  # the loop may be gone

    # ---- facts -------------------------------------------------------------------------------

    @property
    def transport(self) -> str:
        """Name of the transport in use, such as ``"shm"``."""
        return self._session.channel.transport

    @property
    def peer(self) -> PeerInfo:
        """What is known about the other end."""
        return self._session.peer

    @property
    def upgrade_report(self) -> UpgradeReport:
        """Which transport was chosen, and why each other one was not."""
        return self._session.report

    @property
    def max_message_bytes(self) -> int:
        """Size of the largest message that may be sent."""
        return self._session.sends.max_message_bytes

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """No typed attributes: everything is a property."""
        return {}

    def statistics(self) -> ConnectionStatistics:
        """Return the counters as an immutable value."""
        return statistics_of(self._session)

    # ---- requests ------------------------------------------------------------------------------

    async def request(self, payload: Buffer, *, deadline: float | None = None) -> bytes:
        """Send a request and return its answer; any number of tasks may do so at once.

        `deadline` is in seconds from now; it travels with the request.  Raises `RequestFailed`
        when the peer's handler raised, `DeadlineExceeded`, `MessageTooLarge`,
        `anyio.BrokenResourceError` when the connection broke before the answer came (the request
        may have been executed), `anyio.ClosedResourceError`.  Cancelled, the peer is told, and a
        late answer is dropped and counted.
        """
        if deadline is None:
            try:
                reply = self._fast_request(payload)
            except Exception as error:
                raise self._explain(error) from None
            if type(reply) is bytes:
                return reply
            session = self._session
            if type(reply) is int and session.short is not None:
                request = note_sent(session, reply)
                await session.hub.doze(session, request)
                if request.reply is not None:
                    return request.reply
                return await self._await_answer(request, spun=session.ring is not None)
            return await self._request_on(payload, reply)
        return await self._request_until(payload, deadline)

    async def _request_on(self, payload: Buffer, started: Any) -> bytes:
        session = self._session
        if type(started) is int:
            request = session.requests.open(started, Waiter(), sent=True)
            return await self._await_answer(request)
        if started is None:
            return await self._request_anew(_transmit.as_bytes_view(payload), 0)
        await session.hub.breathe()
        return cast("tuple[bytes]", started)[0]

    async def _request_until(self, payload: Buffer, deadline: float) -> bytes:
        self._session.check_open()
        if not deadline > 0:
            raise DeadlineExceeded
        micros = int(min(deadline * 1e6, DEADLINE_US_MAX)) or 1
        data = memoryview(DEADLINE.pack(micros) + bytes(_transmit.as_bytes_view(payload)))
        with self._session.hub.move_on_after(deadline):
            return await self._request_anew(data, int(Flag.DEADLINE), DEADLINE.size)
        raise DeadlineExceeded

    async def _open_request(self, size_bytes: int, streaming: bool) -> Request:
        session = self._session
        session.check_open()
        _transmit.check_size(session, size_bytes)
        window = session.window
        await _transmit.wait_until(session, lambda: window.in_flight < window.in_flight_max)
        window.in_flight += 1
        window.requests += 1
        id = window.next_id
        window.next_id = id + 1
        return session.requests.open(id, Waiter(), streaming=streaming)

    async def _send_request(self, request: Request, flags: int, data: memoryview) -> None:
        session = self._session
        try:
            await _transmit.accept_message(session, Kind.REQUEST, flags, request.id, data)
        except BaseException:
            # Not sent whole: no answer is owed, unless one came already.
            if not request.done:
                session.requests.forget(request)
                session.window.in_flight -= 1
            raise

    async def _request_anew(self, data: memoryview, flags: int, prefix_bytes: int = 0) -> bytes:
        request = await self._open_request(len(data) - prefix_bytes, streaming=False)
        await self._send_request(request, flags, data)
        return await self._await_answer(request)

    async def _await_answer(self, request: Request, *, spun: bool = False) -> bytes:
        session = self._session
        try:
            if not request.done:
                if session.state != "OPEN":
                    session.check_open()
                if session.strict:
                    await session.hub.breathe()
                here = session.ring.server_here if spun and session.ring is not None else None
                if here is not None:
                    await session.hub.let_answer(request.waiter, here)
                await session.hub.park(request.waiter, spun=spun)
        finally:
            if not request.done:
                self._lose_interest(request)
        return request.result()

    def _lose_interest(self, request: Request) -> None:
        if self._session.requests.abandon(request):
            self._session.post(Kind.CANCEL, 0, request.id)

    async def request_many(self, payloads: Sequence[Buffer], *, window: int = 64) -> list[bytes]:
        """Send requests of which up to `window` are in flight; return the answers in their order.

        The first failure, in the order of `payloads`, is raised as by `request`, with a note that
        names the place; the others are abandoned.  `MessageTooLarge` comes before any is sent.
        """
        return await _many.request_many(self, payloads, window)

    def request_stream(self, payload: Buffer, *, deadline: float | None = None) -> ReplyStream:
        """Send a request and iterate over the pieces of its answer as they come.

        Use as ``async with conn.request_stream(q) as pieces: async for piece in pieces``.  The
        pieces are the segments in which the server sent its answer; at most
        ``credit_bytes`` of them wait here, then the server waits.  Leaving early cancels.
        """
        return ReplyStream(self, payload, deadline)

    # ---- messages ------------------------------------------------------------------------------

    async def send(self, item: Buffer | Sequence[Buffer]) -> None:
        """Send a message: any contiguous buffer, or a sequence of buffers that are joined.

        Waits while the peer's window or the transport is full.  Cancelled, all or nothing was
        sent.  Raises `MessageTooLarge` (nothing was sent), `anyio.BrokenResourceError`,
        `anyio.ClosedResourceError`.
        """
        if isinstance(item, list | tuple):
            item = b"".join(_transmit.as_bytes_view(part) for part in item)
        try:
            sent = self._fast_send(item)
        except Exception as error:
            raise self._explain(error) from None
        if sent:
            return
        if sent is None:
            await self._session.hub.breathe()
            return
        await self._send_on(_transmit.as_bytes_view(item))  # type: ignore[arg-type]

    async def _send_on(self, data: memoryview) -> None:
        session = self._session
        await self._accept_data(data)
        await _transmit.flush(session)
        await _transmit.pace(session)

    async def _accept_data(self, data: memoryview) -> None:
        session, window = self._session, self._session.window
        self._check_sendable()
        _transmit.check_size(session, len(data))
        cost = data_cost(len(data), window.peer_window)
        await _transmit.wait_until(session, lambda: window.data_sent + cost <= window.data_allowed)
        window.data_sent += cost
        id = window.next_id
        window.next_id = id + 1
        try:
            await _transmit.accept_message(session, Kind.DATA, 0, id, data)
        except BaseException:
            window.data_sent -= cost  # nothing of it counts: it was not sent, or aborted
            raise

    async def receive(self) -> bytes:
        """Return the next message; a cancelled receive takes none.

        Raises `anyio.EndOfStream` after the last message of a peer that closed,
        `anyio.BrokenResourceError`, `anyio.ClosedResourceError`, `anyio.BusyResourceError` when
        another task receives already.
        """
        session = self._session
        if not session.inbox and session.receiver is None:
            try:
                message = self._fast_receive(True)
            except Exception as error:
                self._explain(error)  # breaks the session: what follows says how
            else:
                if type(message) is bytes:
                    return message
                if message is not None:
                    try:
                        await session.hub.breathe()
                    except BaseException:
                        session.inbox.appendleft(message[0])
                        session.untaken += 1
                        raise
                    return message[0]
        return await self._receive_on()

    async def receive_many(self, limit: int = 64) -> list[bytes]:
        """Wait for a message; return it with those that have come behind it, at most `limit`."""
        return await _many.receive_many(self, limit)

    async def _receive_on(self) -> bytes:
        session = self._session
        await _transmit.pace(session)  # before a message is taken: cancelled, none is lost
        await self._wait_message()
        return self._take_message()

    def _take_message(self) -> bytes:
        session = self._session
        message = session.inbox.popleft()
        if session.untaken:
            session.untaken -= 1
        elif session.state == "OPEN":
            session.window.data_taken(len(message))
            if session.window.credit_owed:
                session.flush_control()
        return message

    async def _wait_message(self, waiter_server: object = None) -> bool:
        """Wait until the inbox has a message; with a server, return False when frames wait."""
        session = self._session
        if session.receiver is not None:
            raise anyio.BusyResourceError("receiving from")
        while not session.inbox:
            if session.behind:  # a long message was taken: what is behind it comes from there
                session.behind = False
                session.on_ready()
                continue
            self._check_receivable()
            waiter = session.receiver = Waiter(waiter_server)
            try:
                await session.hub.park(waiter)
            finally:
                session.receiver = None
            if waiter_server is not None and not session.inbox and session.state == "OPEN":
                return False
        return True

    def _check_receivable(self) -> None:
        session = self._session
        if session.state == "ENDED" or session.peer_done:
            raise anyio.EndOfStream
        if session.leaving is None or session.state != "OPEN":
            session.check_open()

    def _check_sendable(self) -> None:
        self._session.check_open()
        if self._session.eof_sent:
            raise anyio.ClosedResourceError("send_eof was called: nothing more can be sent")

    async def send_eof(self) -> None:
        """Tell the peer that no more messages come; receiving, and requests, go on."""
        session = self._session
        session.check_open()
        if session.eof_sent:
            return
        session.eof_sent = True
        self._fast_send = _transmit.not_sent
        try:
            await _transmit.accept_frame(session, Kind.CLOSE, int(Flag.MORE), 0, b"")
        except BaseException:
            session.eof_sent = False
            raise
        await _transmit.flush(session)

    def as_byte_stream(self) -> ConnectionByteStream:
        """Return an `anyio.abc.ByteStream` over this connection, for protocols that want bytes."""
        return ConnectionByteStream(self)

    # ---- ends ------------------------------------------------------------------------------------

    def _explain(self, error: Exception) -> Exception:
        """Turn what the hot path raised into what the session says, breaking it if need be."""
        session = self._session
        if isinstance(error, RemoteProtocolError | anyio.BrokenResourceError | OSError):
            session.lose(error)
        elif not isinstance(error, anyio.ClosedResourceError):
            return error
        try:
            session.check_open()  # it knows by whom, and why
        except Exception as reason:
            return reason
        return error

    async def aclose(self) -> None:
        """Close: what was sent before is delivered, open requests fail; may be called twice.

        Waits for a slow peer for ``close_timeout`` at most; what it has not taken by then is lost.
        """
        await leave(self._session)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
