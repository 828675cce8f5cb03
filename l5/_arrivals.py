"""What each kind of arriving frame means for a session; the peer may send anything.

Every function takes (session, flags, id, payload) of a frame whose header has been checked, and
raises `RemoteProtocolError` for what a sound peer would not send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

from ._errors import RemoteProtocolError
from ._flow import Refused, data_cost
from ._frames import COUNTER, DEADLINE, ERROR_TEXT_MAX, Flag, Kind, parse_error
from ._hello import printable

if TYPE_CHECKING:
    from ._requests import Request
    from ._session import Session

_MORE = int(Flag.MORE)
_FOR_RESPONSE = int(Flag.FOR_RESPONSE)
_DEADLINE = int(Flag.DEADLINE)


def on_data(session: Session, flags: int, id: int, payload: bytes) -> None:
    if session.server is not None:
        raise RemoteProtocolError("the peer sent plain data to a server that takes requests")
    message = whole(session, (False, id), payload, flags)
    if message is None:
        return
    check_size(session, len(message))
    window = session.window
    window.data_arrived += data_cost(len(message), window.data_window)
    if window.data_arrived - window.data_taken_total > window.data_window:
        raise RemoteProtocolError(
            f"the peer sent more data than the agreed window of {window.data_window} bytes"
        )
    session.inbox.append(message)
    if session.receiver is not None:
        session.receiver.wake()


def on_request(session: Session, flags: int, id: int, payload: bytes) -> None:
    key = (False, id)
    window = session.window
    if id not in session.partial_requests:
        window.handling += 1
        if window.handling > window.handling_max:
            raise RemoteProtocolError(
                f"the peer has more than the agreed {window.handling_max} requests in flight"
            )
    elif flags & _DEADLINE:
        raise RemoteProtocolError(f"the peer sent a deadline in the middle of request {id}")
    first_flags = session.partial_requests.get(id, flags)
    try:
        message = whole(session, key, payload, flags, refusable=True)
    except Refused as error:
        session.partial_requests.pop(id, None)
        session.reply_error(id, "Overloaded", str(error))
        return
    if message is None:
        session.partial_requests[id] = first_flags
        return
    session.partial_requests.pop(id, None)
    deadline = None
    if first_flags & _DEADLINE:  # of a long request only the first segment carries it
        deadline = DEADLINE.unpack_from(message)[0]
        message = message[DEADLINE.size :]
    check_size(session, len(message))
    if session.server is None:
        session.reply_error(id, "NotServed", "nobody at the other end serves requests")
    else:
        session.server.on_request(session, id, message, deadline)


def on_response(session: Session, flags: int, id: int, payload: bytes) -> None:
    request = session.requests.get(id)
    request.arrived_bytes += len(payload)
    if request.streaming:
        on_piece(session, request, flags, payload)
        return
    message = whole(session, (True, id), payload, flags)
    if message is not None:
        check_size(session, len(message))
        session.window.in_flight -= 1
        session.requests.answer(id, message)
        session.wake_patient()


def take_answers(session: Session, limit: int | None) -> bool:
    """Take whole answers from a client's ring, all in one call; False: none comes first.

    At most `limit` of them, or (None) a turn's.  That is the usual case of a client that did not
    find its answer by spinning; whatever else comes, or is to be done, is for the generic way.
    """
    if session.tap is not None or session.leaving is not None:
        return False
    if session._control or session.senders:
        return False
    ring: Any = session.ring
    answers: list[tuple[int, bytes]] = ring.answers(limit or session.hub.turn_frames)
    for id, payload in answers:
        if len(payload) <= session.takes.max_message_bytes and session.requests.settle(id, payload):
            ring.in_flight -= 1
        else:
            on_response(session, 0, id, payload)
    if answers and session.patient:
        session.wake_patient()
    session.hub.streak += len(answers)
    return bool(answers)


def on_piece(session: Session, request: Request, flags: int, payload: bytes) -> None:
    if request.arrived_bytes > request.allowed_bytes:
        raise RemoteProtocolError(
            f"the peer sent {request.arrived_bytes} bytes of an answer of which "
            f"{request.allowed_bytes} were granted"
        )
    if flags & _MORE:
        if request.abandoned:
            piece_taken(session, request, len(payload))
        elif payload:  # a piece without bytes costs no credit, and must not cost memory
            request.pieces.append(payload)
            request.waiter.wake()
        return
    session.window.in_flight -= 1
    session.requests.answer(request.id, payload)
    session.wake_patient()


def piece_taken(session: Session, request: Request, size_bytes: int) -> None:
    """Note that the application took a piece of a streamed answer, and grant more."""
    request.consumed_bytes += size_bytes
    allowed = request.consumed_bytes + session.takes.credit_bytes
    if not request.done and allowed - request.allowed_bytes >= session.takes.credit_bytes // 2:
        request.allowed_bytes = allowed
        session.grant((True, request.id), allowed)


def on_error(session: Session, flags: int, id: int, payload: bytes) -> None:
    del flags
    if id == 0:  # no request has it: the last word of a peer that cuts us off
        reason = printable(parse_error(payload)[1], ERROR_TEXT_MAX)
        raise anyio.BrokenResourceError(f"the peer broke the connection and says: {reason}")
    session.requests.get(id)
    session.reassembly.drop((True, id))
    session.window.partials = len(session.reassembly)
    session.window.in_flight -= 1
    session.requests.fail(id, *parse_error(payload))
    session.wake_patient()


def on_cancel(session: Session, flags: int, id: int, payload: bytes) -> None:
    del flags, payload
    credit = session.credits.get((True, id))
    if credit is not None:
        credit.cancelled = True
        credit.wake()
    if session.server is not None:
        session.server.on_cancel(session, id)


def on_credit(session: Session, flags: int, id: int, payload: bytes) -> None:
    allowed: int = COUNTER.unpack(payload)[0]
    if id == 0:
        window = session.window
        if not window.data_allowed <= allowed <= window.data_sent + window.peer_window:
            raise RemoteProtocolError("the peer granted data credit that cannot be true")
        window.data_allowed = allowed
        session.wake_patient()
        return
    credit = session.credits.get((bool(flags & _FOR_RESPONSE), id))
    if credit is not None and allowed > credit.allowed_bytes:
        credit.allowed_bytes = allowed
        credit.wake()


def on_heartbeat(session: Session, flags: int, id: int, payload: bytes) -> None:
    del flags, id
    session.hear(payload)


def on_close(session: Session, flags: int, id: int, payload: bytes) -> None:
    del id, payload
    if not flags & _MORE:
        session.end(anyio.EndOfStream())
        return
    session.peer_done = True
    if session.receiver is not None:
        session.receiver.wake()


def on_abort(session: Session, flags: int, id: int, payload: bytes) -> None:
    del flags, payload
    if not session.reassembly.drop((False, id)):
        raise RemoteProtocolError(f"the peer aborted message {id}, which is not half sent")
    session.window.partials = len(session.reassembly)
    session.aborted += 1
    if session.partial_requests.pop(id, None) is not None:
        session.window.handling -= 1


def whole(
    session: Session, key: tuple[bool, int], payload: bytes, flags: int, refusable: bool = False
) -> bytes | None:
    if not flags & _MORE and not len(session.reassembly):
        return payload
    try:
        return session.reassembly.add(key, payload, bool(flags & _MORE), refusable)
    finally:
        session.window.partials = len(session.reassembly)


def check_size(session: Session, size_bytes: int) -> None:
    if size_bytes > session.takes.max_message_bytes:
        raise RemoteProtocolError(
            f"the peer sent a message of {size_bytes} bytes where "
            f"{session.takes.max_message_bytes} were agreed"
        )


DISPATCH: dict[int, Callable[[Session, int, int, bytes], None]] = {
    Kind.DATA: on_data,
    Kind.REQUEST: on_request,
    Kind.RESPONSE: on_response,
    Kind.ERROR: on_error,
    Kind.CANCEL: on_cancel,
    Kind.CREDIT: on_credit,
    Kind.HEARTBEAT: on_heartbeat,
    Kind.CLOSE: on_close,
    Kind.ABORT: on_abort,
}
"""By the kind of the frame."""
