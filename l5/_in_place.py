"""Messages in place: `Connection.lease`, `Connection.reserve`, `Connection.receive_into`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import anyio

from . import _transmit
from ._errors import BufferTooShort, LocalProtocolError, MessageTooLarge
from ._flow import data_cost
from ._frames import Kind
from ._wait import Waiter

if TYPE_CHECKING:
    from ._connection import Connection
    from ._session import Session
    from .abc import Buffer


class WorksInPlace:
    """The part of `Connection` that works without an object for each message."""

    _session: Session
    _fast_into: Callable[[Any, bool], Any]
    if TYPE_CHECKING:

        def _explain(self, error: Exception) -> Exception: ...

    async def receive_into(self, buffer: Buffer) -> int:
        """Receive the next message into a writable buffer, at its beginning; return its size.

        As `receive`, without an object for each message; a cancelled one takes none, though the
        buffer may have been written to.  Raises `BufferTooShort` when the message is longer than
        the buffer: it is not taken.
        """
        session = self._session
        if not session.inbox and session.receiver is None:
            try:
                size = self._fast_into(buffer, True)
            except (BufferError, TypeError) as error:
                raise _unfit(error) from None
            except Exception as error:
                self._explain(error)  # breaks the session: what follows says how
            else:
                if type(size) is int:
                    return size
                if size is not None:
                    try:
                        await session.hub.breathe()
                    except BaseException:
                        put_back(session, buffer, size[0])
                        raise
                    return size[0]
        return await receive_into_on(cast("Connection", self), writable(buffer))

    def lease(self) -> Lease:
        """Read the next message in place: ``async with conn.lease() as message: message.view``.

        On shared memory no copy is made if the message is still in the ring when this task gets to
        it (`Lease.in_place`): it stays there, and its space taken, until the block is left, and the
        peer can still change it meanwhile (copy what you check).
        Leaving with live views raises `BufferError`; the space stays taken until they die.
        One lease at a time.
        """
        return Lease(cast("Connection", self))

    def reserve(self, size_bytes: int) -> Reservation:
        """Write a message in place: ``async with conn.reserve(n) as slot``.

        Fill ``slot.view`` (zero-copy on shared memory), release views, then
        ``await slot.send()`` or ``reply = await slot.request()``.  Leaving without either discards.
        While it is open, nothing else can be sent on this connection.
        """
        return Reservation(cast("Connection", self), size_bytes)


def _unfit(error: Exception) -> Exception:
    return type(error)(f"receive_into wants a writable, contiguous buffer: {error}")


def writable(buffer: Buffer) -> memoryview:
    """Return the bytes of a buffer that can be written to; else what `receive_into` raises."""
    try:
        view = _transmit.as_bytes_view(buffer)
    except (BufferError, TypeError) as error:
        raise _unfit(error) from None
    if view.readonly:
        raise _unfit(BufferError("this one is read-only"))
    return view


def put_back(session: Session, buffer: Buffer, size_bytes: int) -> None:
    """Let the next `receive` have a message that was received into a buffer."""
    session.inbox.appendleft(bytes(_transmit.as_bytes_view(buffer)[:size_bytes]))
    session.untaken += 1


async def receive_into_on(connection: Connection, view: memoryview) -> int:
    """Do what `receive_into` does, in turn with other tasks; from the inbox what came there."""
    session = connection._session
    ring = session.ring if session.tap is None else None
    await _transmit.pace(session)
    while True:
        if ring is not None and not session.inbox and session.receiver is None:
            size = await _from_ring(connection, view)
            if size is not None:
                return size
        if await connection._wait_message(session if ring is not None else None):
            break
    size = len(session.inbox[0])
    if size > len(view):
        raise BufferTooShort(size, len(view))
    view[:size] = connection._take_message()
    return size


async def _from_ring(connection: Connection, view: memoryview) -> int | None:
    """Take the message at the head of the ring, and none behind it; None: there is no whole one.

    What is no message, or not a whole one, or one too long, is left to the session.
    """
    session = connection._session
    while session.state == "OPEN" and not session.inbox:
        try:
            size = connection._fast_into(view, False)
        except Exception as error:
            connection._explain(error)  # breaks the session: who waits hears how
            return None
        if type(size) is int:
            return size
        if size is not None:
            return size[0]  # the loop is due: the next call sees to it
        before = session.frames_received
        session.on_ready(1)
        if session.frames_received == before:
            return None
        await _transmit.pace(session)
    return None


class Lease:
    """One message in place; see `Connection.lease`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._slot: Any = None
        self._copy: bytes | None = None

    @property
    def view(self) -> memoryview:
        """A new read-only view of the message; release it before leaving the block."""
        if self._slot is not None:
            return memoryview(self._slot)
        if self._copy is None:
            raise LocalProtocolError("this message is not leased: use async with, and stay in it")
        return memoryview(self._copy)

    @property
    def in_place(self) -> bool:
        """Tell whether the view is the peer's memory (else it is a private copy)."""
        return self._slot is not None

    async def __aenter__(self) -> Lease:
        connection, session = self._connection, self._connection._session
        if session.receiver is not None:
            raise anyio.BusyResourceError("receiving from")
        await _transmit.pace(session)
        ring = session.ring if session.tap is None else None  # a tap wants copies
        while True:
            if not session.inbox and ring is not None and session.state == "OPEN":
                try:
                    self._slot = ring.lease()
                except Exception as error:
                    connection._explain(error)
                if self._slot is not None:
                    return self
                session.on_ready(1)  # no more: what comes meanwhile is to be leased, not copied
            if await connection._wait_message(session if ring is not None else None):
                self._copy = await connection._receive_on()
                return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        slot, self._slot, self._copy = self._slot, None, None
        if slot is not None:
            slot.close()


class Reservation:
    """A message being written in place; see `Connection.reserve`."""

    def __init__(self, connection: Connection, size_bytes: int) -> None:
        self._connection = connection
        self._session = connection._session
        self._size_bytes = size_bytes
        self._slot: Any = None
        self._buffer: bytearray | None = None

    @property
    def view(self) -> memoryview:
        """A new writable view of the message; release it before sending."""
        if self._slot is not None:
            return memoryview(self._slot)
        if self._buffer is None:
            raise LocalProtocolError("this message is not reserved: use async with, and stay in it")
        return memoryview(self._buffer)

    @property
    def in_place(self) -> bool:
        """Tell whether the view is the ring itself (else it is a private buffer)."""
        return self._slot is not None

    async def __aenter__(self) -> Reservation:
        session = self._session
        self._connection._check_sendable()
        if self._size_bytes < 0:
            raise ValueError(f"cannot reserve {self._size_bytes} bytes")
        if self._size_bytes > session.sends.max_message_bytes:
            raise MessageTooLarge(self._size_bytes, session.sends.max_message_bytes)
        if (
            session.ring is None
            or session.tap is not None
            or self._size_bytes > session.sends.segment_bytes
        ):
            self._buffer = bytearray(self._size_bytes)
            return self
        if session.senders or not self._try(session.ring):
            with _transmit.in_line(session) as waiter:
                while not (_transmit.is_first(session, waiter) and self._try(session.ring)):
                    await _transmit.wait_room(session, waiter)
        return self

    def _try(self, ring: Any) -> bool:
        self._session.check_open()
        self._session.flush_control()
        try:
            self._slot = ring.reserve(self._size_bytes)
        except Exception as error:
            raise self._connection._explain(error) from None
        if self._slot is None:
            return False
        self._session.writer = self._session.hub.caller()
        return True

    async def send(self, size_bytes: int | None = None) -> None:
        """Send the first `size_bytes` (default: all) as a message; `BufferError` while viewed."""
        session, window = self._session, self._session.window
        size = self._check(size_bytes)
        if self._slot is None:
            await self._connection.send(self._take()[:size])
            return
        cost = data_cost(size, window.peer_window)
        session.check_open()
        if window.data_sent + cost > window.data_allowed:
            await self._connection.send(self._withdraw(size))
            return
        id = window.next_id
        self._commit(Kind.DATA, id, size)
        await _transmit.pace(session)

    async def request(self, size_bytes: int | None = None) -> bytes:
        """Send the first `size_bytes` (default: all) as a request and return its answer."""
        session = self._session
        size = self._check(size_bytes)
        if self._slot is None:
            return await self._connection.request(self._take()[:size])
        window = session.window
        session.check_open()
        if window.in_flight >= window.in_flight_max:
            return await self._connection.request(self._withdraw(size))
        id = window.next_id
        self._commit(Kind.REQUEST, id, size)
        window.in_flight += 1
        window.requests += 1
        request = session.requests.open(id, Waiter())
        return await self._connection._await_answer(request)

    def _commit(self, kind: Kind, id: int, size_bytes: int) -> None:
        try:
            self._slot.commit(int(kind), id, size_bytes)
        except BufferError:
            raise  # live views: nothing has happened
        except Exception as error:
            raise self._connection._explain(error) from None
        self._session.window.next_id = id + 1
        self._session.writer = self._slot = None
        self._freed()

    def _check(self, size_bytes: int | None) -> int:
        if self._slot is None and self._buffer is None:
            raise LocalProtocolError("nothing is reserved here, or it was sent already")
        size = self._size_bytes if size_bytes is None else size_bytes
        if not 0 <= size <= self._size_bytes:
            raise ValueError(f"cannot send {size} of {self._size_bytes} reserved bytes")
        return size

    def _withdraw(self, size_bytes: int) -> bytes:
        """Take the message out of the ring again, because it may not be sent yet.

        Waiting with the ring reserved could last for ever: the peer's next word may depend on
        credit that could not be sent meanwhile.
        """
        session = self._session
        if self._slot.views:
            raise BufferError(
                f"release the {self._slot.views} view(s) of this message before sending it"
            )
        with memoryview(self._slot) as view:
            message = view.tobytes()[:size_bytes]
        slot, self._slot, session.writer = self._slot, None, None
        slot.close()
        self._freed()
        return message

    def _take(self) -> memoryview:
        assert self._buffer is not None
        view, self._buffer = memoryview(self._buffer), None
        return view

    def _freed(self) -> None:
        self._session.flush_control()  # what had to be said meanwhile
        self._session.wake_first()

    def _freed_late(self) -> None:
        """(In any thread) the views have died that were left; who waits hears of it in the loop."""
        self._session.hub.later(self._freed)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        slot, self._slot, self._buffer = self._slot, None, None
        if slot is not None:
            self._session.writer = None
            slot.freed = self._freed_late
            slot.close()
            self._freed()
