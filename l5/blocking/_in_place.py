"""Messages in place, and the pieces of one answer, for threads."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import _in_place, _streams
from ._hub import expiry, finish

if TYPE_CHECKING:
    from .._session import Session
    from ..abc import Buffer
    from ._connection import Connection


Inner = TypeVar("Inner", _in_place.Lease, _in_place.Reservation, _streams.ReplyStream)


def receive_into(connection: Connection, buffer: Buffer, timeout: float | None) -> int:
    """See `Connection.receive_into`."""
    ring = connection._ring  # pyright: ignore[reportPrivateUsage]
    size = None if ring is None else _receive_fast(connection, ring, buffer)
    if size is not None:
        return size
    view = _in_place.writable(buffer)
    session = connection._session  # pyright: ignore[reportPrivateUsage]
    steps = _in_place.receive_into_on(connection._engine, view)  # pyright: ignore
    run = connection._run  # pyright: ignore[reportPrivateUsage]
    return run(steps, expiry(timeout), "receiving", lambda n: _in_place.put_back(session, view, n))


def _receive_fast(connection: Connection, ring: Any, buffer: Buffer) -> int | None:
    session: Session = connection._session  # pyright: ignore[reportPrivateUsage]
    lock = connection._lock  # pyright: ignore[reportPrivateUsage]
    size: Any = None
    try:
        with lock:
            if session.inbox or session.receiver is not None:
                return None
            try:
                size = ring.receive_into(buffer, True)
            except (BufferError, TypeError):
                return None  # said below, as where there is no ring
            except BaseException as error:
                if ring.last is not None:  # taken, when a signal's handler raised
                    size = ring.last
                    raise
                connection._explain_fault(error)  # pyright: ignore[reportPrivateUsage]
            if size is not None and type(size) is not int:
                size = size[0]
                connection._hub.count_anew()  # pyright: ignore[reportPrivateUsage]
        return size
    except BaseException:
        if type(size) is int:
            with lock:
                _in_place.put_back(session, buffer, size)
        raise


class _Block(Generic[Inner]):
    """What is left as its counterpart of the engine is."""

    _connection: Connection
    _inner: Inner

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hub = self._connection._hub  # pyright: ignore[reportPrivateUsage]
        hub.run(self._inner.__aexit__(None, None, None))


class Lease(_Block[_in_place.Lease]):
    """One message in place; see `Connection.lease`."""

    def __init__(self, connection: Connection, timeout: float | None) -> None:
        self._connection = connection
        self._timeout = timeout
        self._inner = _in_place.Lease(connection._engine)  # pyright: ignore[reportPrivateUsage]

    @property
    def view(self) -> memoryview:
        """A new read-only view of the message; release it before leaving the block."""
        return self._inner.view

    @property
    def in_place(self) -> bool:
        """Tell whether the view is the peer's memory (else it is a private copy)."""
        return self._inner.in_place

    def __enter__(self) -> Lease:
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        run(self._inner.__aenter__(), expiry(self._timeout), "receiving", self._lost)
        return self

    def _lost(self, inner: _in_place.Lease) -> None:
        """A message was taken, and an interruption kept the block from being entered."""
        hub = self._connection._hub  # pyright: ignore[reportPrivateUsage]
        hub.spoil(InterruptedError())
        finish(inner.__aexit__(None, None, None))


class Reservation(_Block[_in_place.Reservation]):
    """A message being written in place; see `Connection.reserve`."""

    def __init__(self, connection: Connection, size_bytes: int, timeout: float | None) -> None:
        self._connection = connection
        self._timeout = timeout
        engine = connection._engine  # pyright: ignore[reportPrivateUsage]
        self._inner = _in_place.Reservation(engine, size_bytes)

    @property
    def view(self) -> memoryview:
        """A new writable view of the message; release it before sending."""
        return self._inner.view

    @property
    def in_place(self) -> bool:
        """Tell whether the view is the ring itself (else it is a private buffer)."""
        return self._inner.in_place

    def __enter__(self) -> Reservation:
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        run(self._inner.__aenter__(), expiry(self._timeout), "reserving", self._lost)
        return self

    def _lost(self, inner: _in_place.Reservation) -> None:
        """An interruption kept the block from being entered, so that it will not be left either."""
        finish(inner.__aexit__(None, None, None))

    def send(self, size_bytes: int | None = None, *, timeout: float | None = None) -> None:
        """Send the first `size_bytes` (default: all) as a message; `BufferError` while viewed."""
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        run(self._inner.send(size_bytes), expiry(timeout), "sending")

    def request(self, size_bytes: int | None = None, *, timeout: float | None = None) -> bytes:
        """Send the first `size_bytes` (default: all) as a request and return its answer."""
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        return run(self._inner.request(size_bytes), expiry(timeout), "an answer")


class ReplyStream(_Block[_streams.ReplyStream]):
    """The pieces of one answer; see `Connection.request_stream`."""

    def __init__(
        self,
        connection: Connection,
        payload: Buffer,
        deadline: float | None,
        timeout: float | None,
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        engine = connection._engine  # pyright: ignore[reportPrivateUsage]
        self._inner = _streams.ReplyStream(engine, payload, deadline)

    def __enter__(self) -> ReplyStream:
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        run(self._inner.__aenter__(), expiry(self._timeout), "sending the request", self._unused)
        return self

    def __iter__(self) -> ReplyStream:
        return self

    def __next__(self) -> bytes:
        run = self._connection._run  # pyright: ignore[reportPrivateUsage]
        try:
            return run(self._inner.__anext__(), expiry(self._timeout), "the next piece", self._lost)
        except StopAsyncIteration:
            raise StopIteration from None

    def _unused(self, inner: _streams.ReplyStream) -> None:
        """An interruption kept the block from being entered, so that it will not be left either."""
        finish(inner.__aexit__(None, None, None))

    def _lost(self, piece: bytes) -> None:
        del piece
        self._connection._hub.spoil(InterruptedError())  # pyright: ignore[reportPrivateUsage]
