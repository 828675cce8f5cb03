"""Two views of a connection: the pieces of one answer, and plain bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio.abc

from . import _transmit
from ._arrivals import piece_taken
from ._errors import DeadlineExceeded, LocalProtocolError
from ._frames import DEADLINE, DEADLINE_US_MAX, Flag, Kind
from ._wait import Waiter

if TYPE_CHECKING:
    from ._connection import Connection
    from ._requests import Request
    from .abc import Buffer


class ReplyStream:
    """The pieces of one answer; see `Connection.request_stream`."""

    def __init__(self, connection: Connection, payload: Buffer, deadline: float | None) -> None:
        self._connection = connection
        self._session = connection._session
        self._payload = payload
        self._expires = None if deadline is None else self._session.hub.now() + deadline
        self._request: Request | None = None

    async def __aenter__(self) -> ReplyStream:
        data = _transmit.as_bytes_view(self._payload)
        size_bytes = len(data)
        flags = 0
        if self._expires is not None:
            left = self._expires - self._session.hub.now()
            if left <= 0:
                raise DeadlineExceeded
            flags = int(Flag.DEADLINE)
            data = memoryview(DEADLINE.pack(int(min(left * 1e6, DEADLINE_US_MAX))) + bytes(data))
        request = await self._connection._open_request(size_bytes, streaming=True)
        request.allowed_bytes = self._session.takes.credit_bytes
        self._request = request
        await self._connection._send_request(request, flags, data)
        return self

    def __aiter__(self) -> ReplyStream:
        return self

    async def __anext__(self) -> bytes:
        request, session = self._request, self._session
        if request is None:
            raise LocalProtocolError("enter the stream first: async with conn.request_stream(...)")
        while not request.pieces:
            if request.done:
                if request.error is not None:
                    raise request.error
                raise StopAsyncIteration
            request.waiter = Waiter()
            await self._park(request.waiter)
        await _transmit.pace(session)  # before a piece is taken: cancelled, none is lost
        piece = request.pieces.popleft()
        piece_taken(session, request, len(piece))
        return piece

    async def _park(self, waiter: Waiter) -> None:
        if self._expires is None:
            await self._session.hub.park(waiter)
            return
        hub = self._session.hub
        with hub.move_on_after(self._expires - hub.now()):
            await hub.park(waiter)
            return
        raise DeadlineExceeded

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        request, session = self._request, self._session
        if request is not None and session.requests.abandon(request):
            session.post(Kind.CANCEL, 0, request.id)


class ConnectionByteStream(anyio.abc.ByteStream):
    """Bytes over messages: boundaries are not kept."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = memoryview(b"")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return 1 to `max_bytes` bytes; `anyio.EndOfStream` at the end."""
        while not self._rest:
            self._rest = memoryview(await self._connection.receive())
        part = bytes(self._rest[:max_bytes])
        self._rest = self._rest[max_bytes:]
        return part

    async def send(self, item: bytes) -> None:
        """Send all bytes, in messages of at most a segment."""
        step = self._connection._session.sends.segment_bytes
        view = memoryview(item)
        for start in range(0, len(view), step):
            await self._connection.send(view[start : start + step])

    async def send_eof(self) -> None:
        """Tell the peer that no more bytes come."""
        await self._connection.send_eof()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The connection's."""
        return self._connection.extra_attributes
