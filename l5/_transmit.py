"""Send whole messages: wait for room, cut what is longer than a segment, respect credit.

A message is sent whole or not at all: one that is given up in the middle ends with ABORT (or, an
answer, with ERROR), and the receiver forgets its segments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ._errors import LocalProtocolError, MessageTooLarge
from ._flow import Credit
from ._frames import Flag, Kind
from ._session import Session
from ._wait import Waiter

if TYPE_CHECKING:
    from .abc import Buffer

_MORE, _REQUEST = int(Flag.MORE), int(Kind.REQUEST)
LONG_DATA_MAX = 8
"""Long data messages that one connection sends at once; the receiver takes twice as many."""


def as_bytes_view(payload: Buffer) -> memoryview:
    """Return the bytes of any contiguous buffer, without a copy."""
    view = memoryview(payload)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B")


def start_request(session: Session, payload: Any) -> int | None:
    """Send a request that fits one frame at once; return its id, or None: nothing was sent.

    What the hot path of a ring does in C, for the other channels.
    """
    window = session.window
    if session._control or session.senders or session.state != "OPEN":
        return None
    if window.in_flight >= window.in_flight_max:
        return None
    if type(payload) is not bytes or len(payload) > session.sends.segment_bytes:
        return None
    id = window.next_id
    if session.watch is not None:
        session.watch.begin()
    if not session.channel.try_send(_REQUEST, 0, id, payload):
        return None
    if session.channel.wants_write:
        session.hub.touch(session)
    session.frames_sent += 1
    window.next_id = id + 1
    window.requests += 1
    window.in_flight += 1
    return id


def starter(session: Session) -> Callable[[Any], Any]:
    """Return the call that sends a small request at once: the ring's, the lane's, or the above."""
    hot: Any = session.ring or session.lane
    return partial(start_request, session) if hot is None else hot.request


def receive_for(found: Any) -> None:
    """Receive the generic way from what `Poller.serve` gave: a ring, a spot or a lane."""
    session: Session | None = found.session
    if session is None:
        return
    session.on_ready()
    if session.lane is found:
        session.hub.touch(session)  # there may be more than a turn's worth


def not_fast(*_: Any) -> None:
    """Stand in for a hot call where there is no ring."""


def not_sent(_: Any) -> bool:
    """Stand in for the hot call that sends, where there is no ring."""
    return False


def check_size(session: Session, size_bytes: int) -> None:
    """Raise `MessageTooLarge` before anything is sent."""
    if size_bytes > session.sends.max_message_bytes:
        raise MessageTooLarge(size_bytes, session.sends.max_message_bytes)


@contextmanager
def in_line(session: Session) -> Generator[Waiter]:
    """Stand in the line of those who wait for room; who leaves it wakes the next.

    Everybody keeps his place, and only the first one tries: a small message waits behind one
    segment of each long one before it, and never behind all of them.
    """
    waiter = Waiter()
    session.senders[waiter] = None
    session.window.queued = len(session.senders)
    try:
        yield waiter
    finally:
        del session.senders[waiter]
        session.window.queued = len(session.senders)
        session.wake_first()


def is_first(session: Session, waiter: Waiter) -> bool:
    """Tell whether it is this one's turn to send."""
    return next(iter(session.senders)) is waiter


def check_own_reservation(session: Session) -> None:
    """Raise `LocalProtocolError` when the caller waits for its own reservation to end."""
    if session.writer is not None and session.writer == session.hub.caller():
        raise LocalProtocolError(
            "this task has a message reserved on this connection (conn.reserve), behind which "
            "nothing else can be sent: send it, or leave its block, first"
        )


async def wait_room(session: Session, waiter: Waiter) -> None:
    """Park until it is this one's turn and there may be room, or the session ends."""
    check_own_reservation(session)
    session.space_waits += 1
    session.hub.touch(session)
    waiter.ready = False
    await session.hub.park(waiter)


async def wait_until(session: Session, condition: Callable[[], bool]) -> None:
    """Park until the peer's credit or answers make `condition` true; raises when it ends."""
    if not condition():
        check_own_reservation(session)
        waiter = Waiter()
        session.space_waits += 1
        session.patient[waiter] = None
        try:
            while not condition():
                session.check_open()
                waiter.ready = False
                await session.hub.park(waiter)
        finally:
            del session.patient[waiter]
    session.check_open()


async def pace(session: Session) -> None:
    """Let the event loop run if it is time to, so that no busy task keeps it for itself."""
    if session.hub.due() or session.strict:
        await session.hub.breathe()


async def accept_frame(session: Session, kind: int, flags: int, id: int, payload: Any) -> None:
    """Wait until the channel has accepted a frame; cancelled before that, nothing is sent."""
    if not session.senders and session.try_frame(kind, flags, id, payload):
        return
    session.check_open()
    with in_line(session) as waiter:
        while not (is_first(session, waiter) and session.try_frame(kind, flags, id, payload)):
            await wait_room(session, waiter)
            session.check_open()


async def flush(session: Session) -> None:
    """Wait until what was accepted has left; cancelled, the hub goes on pushing it out."""
    if not session.channel.wants_write:
        return
    with in_line(session) as waiter:
        while session.channel.wants_write and not session.flush():
            await wait_room(session, waiter)
    session.check_open()


async def accept_message(
    session: Session, kind: int, flags: int, id: int, payload: memoryview
) -> None:
    """Wait until a message of any agreed size has been accepted whole; else nothing is sent."""
    if len(payload) <= session.sends.segment_bytes:
        await accept_frame(session, kind, flags, id, payload)
    else:
        await _send_segments(session, kind, flags, id, payload)


async def _send_segments(
    session: Session, kind: int, flags: int, id: int, payload: memoryview
) -> None:
    if kind == Kind.DATA:
        # The receiver keeps a bounded number of half messages; requests are bounded by in_flight.
        await wait_until(session, lambda: session.long_data < LONG_DATA_MAX)
        session.long_data += 1
    key = (kind == Kind.RESPONSE, id)
    credit = session.credits[key] = Credit(session.sends.credit_bytes)
    sent = 0
    try:
        while sent < len(payload):
            size = min(session.sends.segment_bytes, len(payload) - sent)
            await _wait_credit(session, credit, sent + size)
            more = _MORE if sent + size < len(payload) else 0
            await accept_frame(session, kind, flags | more, id, payload[sent : sent + size])
            sent += size
            flags = 0
    except BaseException:
        _give_up(session, kind, id, sent)
        raise
    finally:
        del session.credits[key]
        if kind == Kind.DATA:
            session.long_data -= 1
            session.wake_patient()


async def _wait_credit(session: Session, credit: Credit, needed_bytes: int) -> None:
    while credit.allowed_bytes < needed_bytes:
        session.check_open()
        if credit.cancelled:
            raise MessageCancelled
        credit.waiter = Waiter()
        try:
            await session.hub.park(credit.waiter)
        finally:
            credit.waiter = None


class MessageCancelled(Exception):
    """The receiver of a long answer lost interest in it."""


def _give_up(session: Session, kind: int, id: int, sent_bytes: int) -> None:
    """End a message in the middle, so that the receiver forgets it."""
    if not sent_bytes or session.state != "OPEN" or kind == Kind.RESPONSE:
        return  # nothing to forget; an answer is ended by the ERROR that its server sends
    session.post(Kind.ABORT, 0, id)
