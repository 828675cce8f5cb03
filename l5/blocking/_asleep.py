"""The usual sleep of a thread: for the answer to its request, or a message, on a ring.

Whatever waits can run the engine (`_hub`), but most waits are of one kind: nobody else waits on
this connection, nothing else is to be sent, and what comes next in the ring is what is waited for.
Then all of it is one call into C (`native/_ring_sleep.c`), made with the lock, which is let go
while it sleeps.  To everybody else the thread is the one that drives the engine and sleeps there:

    hub._driver = who waits, asleep_in = the hub       others park behind it, and may wake it
    hub.flat = the thread                              handlers of its signals must not wait for it
    the session is among hub._unarmed, or is armed     else a wake-up would be lost

When anything else woke it, or comes first, or the time is over, the call returns without what was
waited for.  The thread then is no driver any more, the request stands in the table, and the engine
goes on with it as if it had just begun to wait: it looks at everything anew.  So nothing unusual is
treated here.

Exceptions of signal handlers come where Python looks for signals, which is in calls: the engine's
state is changed by plain stores before and after, and what follows may be repeated.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from .._frames import Kind
from .._waiter import LightWaiter, OwnRequest

if TYPE_CHECKING:
    from .._fast import Ring
    from .._session import Session
    from ._connection import Connection
    from ._hub import BlockingHub

LONGEST_SLEEP_MS = 86_400_000
Sleep = Callable[..., Any]
"""`Ring.await_answer` or `await_data`, given the lock and the descriptor to sleep on."""
_get_ident = threading.get_ident


def sleeps_of(hub: BlockingHub, ring: Ring) -> tuple[Sleep, Sleep]:
    """Return what sleeps for an answer, and for a message."""
    assert hub._watcher is not None
    fd = hub._watcher.fileno()  # the same for as long as the session is open
    return partial(ring.await_answer, hub.lock, fd), partial(ring.await_data, hub.lock, fd)


def note(hub: BlockingHub, session: Session, id: int) -> OwnRequest:
    """(With the lock) note a request that a hot call has sent."""
    requests, request = session.requests, hub.spare
    hub.spare = None
    if request is None:
        request = OwnRequest()
    request.id = id
    if requests.watch is not None:
        request.begun_ns = requests.watch.begun_ns
    requests._requests[id] = request  # pyright: ignore[reportPrivateUsage]
    return request


def milliseconds(expires: float | None) -> int:
    """Return how long is left to sleep, rounded up, -1 for ever, 0 no time at all."""
    if expires is None:
        return -1
    return max(0, min(math.ceil((expires - monotonic()) * 1000), LONGEST_SLEEP_MS))


def answer_to(
    request: OwnRequest, hub: BlockingHub, session: Session, sleep: Sleep, expires: float | None
) -> bytes | None:
    """(With the lock, which is let go) sleep for the answer; None: the engine is to go on.

    To be called with the lock still held since the hot call sent the request: so the session is
    open, nobody waits for room, and the engine is not at work.  If it raises, `give_up` is next.
    """
    unarmed, me = hub._unarmed, _get_ident()
    if (
        hub._driver is not None
        or session._control
        or len(unarmed) > (session in unarmed)
        or hub.flat
        or me in hub._callers
    ):
        return None
    unarmed.discard(session)
    # No calls between these, and none between those below: signals are looked for in calls.
    hub.flat, hub._driver, request.asleep_in = me, request, hub
    reply = sleep(-1 if expires is None else milliseconds(expires), request.id)
    hub.flat, hub._driver, request.asleep_in = 0, None, None
    unarmed.add(session)
    if hub._parked or not hub._endpoints:
        _hand_over(hub)
    if reply is not None:
        requests = session.requests
        if requests.watch is None and not request.begun_ns:
            if requests._requests.pop(request.id, None) is request:
                hub.spare = request  # nobody else knows it now, and it is as it was
        else:
            requests.complete(request.id, reply)
        if session.patient:
            session.wake_patient()
    _count(hub, session)
    return reply


def message(hub: BlockingHub, session: Session, sleep: Sleep, expires: float | None) -> Any:
    """(With the lock, which is let go) sleep for a message; as `Ring.receive`.

    None: the engine is to go on; so it is after an exception, for which all has been put back.
    """
    unarmed, me = hub._unarmed, _get_ident()
    if (
        hub._driver is not None
        or session._control
        or session.senders
        or session.state != "OPEN"
        or session.leaving is not None
        or session.peer_done
        or len(unarmed) > (session in unarmed)
        or hub.inside
        or hub.flat
        or me in hub._callers
    ):
        return None
    sleeper = LightWaiter()
    try:
        unarmed.discard(session)
        hub.flat, hub._driver, sleeper.asleep_in, session.receiver = me, sleeper, hub, sleeper
        found = sleep(-1 if expires is None else milliseconds(expires))
        _rise(hub, session, sleeper)
    except BaseException:
        _rise(hub, session, sleeper)
        raise
    _count(hub, session)
    return found


def _rise(hub: BlockingHub, session: Session, sleeper: LightWaiter) -> None:
    """(With the lock) drive no more, if need be; may be repeated where it was interrupted."""
    if hub._driver is sleeper:
        hub.flat, hub._driver, sleeper.asleep_in = 0, None, None
    if session.receiver is sleeper:
        session.receiver = None
    if session.state == "OPEN":
        hub._unarmed.add(session)  # its bell may have been silenced; armed twice does no harm
    _hand_over(hub)


def _hand_over(hub: BlockingHub) -> None:
    if hub._parked:
        hub._hand_over()
    if not hub._endpoints:
        hub._close_if_unused()


def _count(hub: BlockingHub, session: Session) -> None:
    ring: Any = session.ring
    slept_ns = ring.slept_ns
    if slept_ns:
        hub.sleeps += 1
        hub.slept_ns += slept_ns
    if hub.beats is not None or hub.hungry:
        hub.count_anew()


def give_up(request: OwnRequest, hub: BlockingHub, session: Session) -> None:
    """(With the lock) undo what an exception of a signal's handler interrupted."""
    ring, hub.spare = session.ring, None
    _rise(hub, session, request)
    if ring is not None and ring.taken == request.id:  # its answer was lost on the way up
        request.done = True
        session.requests._requests.pop(request.id, None)
    elif session.requests.abandon(request):
        session.post(Kind.CANCEL, 0, request.id)


def receive(connection: Connection, ring: Any, expires: float | None) -> bytes | None:
    """Take the next message from the ring, spinning and sleeping for it; None: by the engine."""
    session = connection._session
    found: Any = None
    try:
        with connection._lock:
            if session.inbox or session.receiver is not None:
                return None
            try:
                found = ring.receive(True)
                sleep = connection._sleep_for_data
                if found is None and sleep is not None:
                    found = message(connection._hub, session, sleep, expires)
            except BaseException as error:
                if ring.last is not None:  # taken, when a signal's handler raised
                    found = ring.last
                    raise
                connection._explain_fault(error)
            if found is not None and type(found) is not bytes:
                found = found[0]
                connection._hub.count_anew()
        return found
    except BaseException:
        if type(found) is bytes:
            with connection._lock:
                connection._give_back(found)
        raise
