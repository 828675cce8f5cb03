"""Many messages at once: pipelined requests, and messages taken in batches.

One call into C sends up to a window of requests and takes the answers that have come; what does not
fit into it (a long message, an error, an answer that lets wait) goes the way of a single request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _transmit
from ._requests import Request
from ._wait import Waiter

if TYPE_CHECKING:
    from ._connection import Connection
    from ._fast import Ring
    from ._requests import RequestTable
    from ._session import Session
    from .abc import Buffer

__all__ = ["receive_many", "request_many"]

_Pending = deque[tuple[int, Request]]


class Flight:
    """Requests that C has under way while the event loop has its turn.

    Making an object of each costs more than all else that is done for it, and mostly nobody asks:
    C goes on, and takes the answers itself.  Whoever asks for one of them, or ends them all, has
    objects made of all that have no answer; then C takes no more.
    """

    def __init__(self, table: RequestTable, answers: list[bytes | None], start: int) -> None:
        self._table = table
        self._answers = answers
        self._start = start
        self.sent: int = start
        self.first_id: int = 0
        self.missing: int = 0
        self.requests: _Pending | None = None
        """Places in `answers` and what waits for them, once somebody has asked."""

    def scatter(self) -> _Pending:
        """Make the objects, if that has not been done."""
        if self.requests is None:
            self.requests = deque()
            if self.missing:
                for place in range(self._start, self.sent):
                    if self._answers[place] is None:
                        id = self.first_id + place - self._start
                        request = self._table.open(id, Waiter(), sent=True)
                        self.requests.append((place, request))
        return self.requests


async def request_many(
    connection: Connection, payloads: Sequence[Buffer], window: int
) -> list[bytes]:
    """See `Connection.request_many`."""
    if window < 1:
        raise ValueError(f"window is {window}; at least one request has to be in flight")
    session = connection._session
    batch = tuple(payloads)
    _check_sizes(session, batch)
    answers: list[bytes | None] = [None] * len(batch)
    pending: _Pending = deque()
    place = 0
    try:
        while place < len(batch) or pending:
            # What C can send waits until all is taken: then it goes on with whole windows.
            if place < len(batch) and (
                not pending or (len(pending) < window and not _is_for_c(session, batch[place]))
            ):
                place = await _send_more(connection, batch, answers, place, window, pending)
            else:
                await _take_oldest(connection, answers, pending)
    except BaseException:
        _abandon(connection, pending)
        raise
    return answers  # type: ignore[return-value]  # no place is empty by now


def _is_for_c(session: Session, payload: Buffer) -> bool:
    """Tell whether one call into C sends windows: none while somebody looks at each request."""
    if session.ring is None or session.tap or session.watch:
        return False
    return _size(payload) <= session.sends.segment_bytes


def _check_sizes(session: Session, batch: tuple[Buffer, ...]) -> None:
    """Raise `MessageTooLarge` if one is; nothing is under way yet, so the peer waits meanwhile."""
    ring: Ring | None = session.ring
    longest = None if ring is None else ring.longest(batch)
    if longest is None or longest > session.sends.max_message_bytes:
        for payload in batch:
            _transmit.check_size(session, _size(payload))


def _size(payload: Buffer) -> int:
    return len(payload) if isinstance(payload, bytes) else _transmit.as_bytes_view(payload).nbytes


async def _send_more(
    connection: Connection,
    batch: tuple[Buffer, ...],
    answers: list[bytes | None],
    place: int,
    window: int,
    pending: _Pending,
) -> int:
    """Send from `place` on; return how far that went, with what has no answer yet in `pending`."""
    session = connection._session
    if not pending and _is_for_c(session, batch[place]):
        sent = await _send_windows(connection, batch, answers, place, window, pending)
        if sent > place:
            return sent
    view = _transmit.as_bytes_view(batch[place])
    request = await connection._open_request(len(view), streaming=False)
    pending.append((place, request))
    await connection._send_request(request, 0, view)
    return place + 1


async def _send_windows(
    connection: Connection,
    batch: tuple[Buffer, ...],
    answers: list[bytes | None],
    start: int,
    window: int,
    pending: _Pending,
) -> int:
    """Let C send; the requests that are under way in a turn of the event loop stay C's.

    So the peer has something to do meanwhile.
    """
    session = connection._session
    ring: Ring | None = session.ring
    assert ring is not None  # _is_for_c has said so
    flight = Flight(session.requests, answers, start)
    goes_on = True
    try:
        while goes_on:
            try:
                flight.sent, flight.first_id, flight.missing, goes_on, thrown = ring.request_many(
                    batch, answers, start, window, flight.sent, flight.first_id, flight.missing
                )
            except Exception as error:
                raise connection._explain(error) from None
            if thrown is not None:
                raise thrown
            if goes_on:
                goes_on = await _let_others_run(session, flight)
    finally:
        pending.extend(flight.scatter())
    await _transmit.pace(session)
    return flight.sent


async def _let_others_run(session: Session, flight: Flight) -> bool:
    """Give the event loop a turn; tell whether C takes the flight's answers after it, too."""
    flights = session.requests.flights
    flights.append(flight)
    try:
        await _transmit.pace(session)
    finally:
        if flight in flights:  # else all were scattered
            flights.remove(flight)
    return flight.requests is None and not session.tap and not session.watch


async def _take_oldest(
    connection: Connection, answers: list[bytes | None], pending: _Pending
) -> None:
    place, request = pending[0]
    try:
        answers[place] = await connection._await_answer(request)
    except Exception as error:
        error.add_note(f"request {place} of request_many")
        raise
    pending.popleft()


def _abandon(connection: Connection, pending: _Pending) -> None:
    """Lose interest in what is in flight: the peer is told, late answers are dropped."""
    for _, request in pending:
        connection._lose_interest(request)


async def receive_many(connection: Connection, limit: int) -> list[bytes]:
    """See `Connection.receive_many`."""
    if limit < 1:
        raise ValueError(f"limit is {limit}; ask for one message at least")
    session = connection._session
    messages = [await connection.receive()]
    while session.inbox and len(messages) < limit:
        messages.append(connection._take_message())
    ring: Ring | None = session.ring
    if ring is not None and len(messages) < limit and not (session.inbox or session.tap):
        try:
            messages += ring.receive_many(limit - len(messages))
        except Exception as error:
            connection._explain(error)  # after what came before: the next call says so
    return messages
