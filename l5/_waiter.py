"""Who waits, for whom, and on what: the vocabulary of the wait loop (`l5._wait`)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ._requests import NO_PIECES, Request

if TYPE_CHECKING:
    from ._wait import Hub

__all__ = [
    "Endpoint",
    "LightWaiter",
    "OwnRequest",
    "TaskRequest",
    "WaitEvent",
    "Waiter",
    "is_for",
    "note_sent",
    "rang_for",
]


class Endpoint(Protocol):
    """What a hub polls, arms and wakes: a session or a listener."""

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors to watch; the first one is the channel's own."""
        ...

    def wants_write(self) -> bool:
        """Tell whether accepted bytes wait for the first descriptor to become writable."""
        ...

    def on_ready(self) -> None:
        """Handle what can be received, wake who waits for it."""
        ...

    def on_event(self, fd: int, readable: bool, writable: bool) -> None:
        """Take notice of readiness of a descriptor."""
        ...

    def arm(self) -> bool:
        """Agree to sleep; False if there is something to do already."""
        ...

    def drop_in_child(self) -> None:
        """(In a forked child) close the own copies of descriptors without a word to the peer."""
        ...


class WaitEvent(Protocol):
    """What a parked task sleeps on."""

    def set(self) -> object:
        """Wake it."""
        ...

    async def wait(self) -> None:
        """Wait until it is set."""
        ...


class Waiter:
    """One task's wish to be woken."""

    __slots__ = ("asleep_in", "event", "ready", "server")

    def __init__(self, server: object = None) -> None:
        self.ready: bool = False
        self.event: WaitEvent | None = None
        self.asleep_in: Hub | None = None
        """The hub whose descriptor the task sleeps on, while it drives."""
        self.server: object = server
        """(The leader of a request server) frames for this server are left in the rings."""

    def wake(self) -> None:
        """Let the task go on; may be called any number of times."""
        self.ready = True
        if self.event is not None:
            self.event.set()
        elif self.asleep_in is not None:
            self.asleep_in.interrupt()

    def collect(self) -> object:
        """(By the driver, woken) take what was waited for; the endpoint that it was taken from."""
        return None


class LightWaiter(Waiter):
    """A waiter whose defaults are the class's, not slots: most are never changed."""

    ready: bool = False
    event: WaitEvent | None = None
    asleep_in: Hub | None = None
    server: object = None

    def __init__(self) -> None:
        pass


class OwnRequest(LightWaiter, Request):
    """A request that a hot call has sent, and its own waiter: one object, as most are no more."""

    streaming: bool = False
    pieces: deque[bytes] = NO_PIECES
    id: int

    @property
    def waiter(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Itself."""
        return self


class TaskRequest(OwnRequest):
    """When it is woken, who waits takes the answer from the ring, or reads it, itself."""

    def __init__(self, session: Any, id: int) -> None:
        self.session: Any = session
        self.id = id


class RingRequest(TaskRequest):
    """Over a ring."""

    def collect(self) -> object:
        """See `Waiter.collect`; whether the answer was there, `ready` tells."""
        session = self.session
        if self.ready or session.state != "OPEN":
            return None
        try:
            reply = session.ring.collect(self.id)
        except Exception:
            return None  # whoever receives next finds the same
        if reply is not None:
            session.window.in_flight -= 1
            session.requests.answer(self.id, reply)
            if session.patient:
                session.wake_patient()
        return session


class LaneRequest(TaskRequest):
    """Over a plain socket."""

    def collect(self) -> object:
        """See `Waiter.collect`; whatever else came, the session has been told of."""
        session = self.session
        if self.ready:  # another task has looked, and found it: what comes now is not for us
            return None
        try:
            reply = session.lane.collect(self.id)
        except Exception as error:  # what was read is lost
            session.fail(error)
            return None
        if type(reply) is bytes:
            self.ready = True
            session.requests.complete(self.id, reply)
            if session.patient:
                session.wake_patient()
        return None


def note_sent(session: Any, id: int) -> TaskRequest:
    """Note a request that a hot call of a ring or lane has sent, with what waits for its answer."""
    request = (LaneRequest if session.ring is None else RingRequest)(session, id)
    session.requests.note(request, sent=True)
    return request


def is_for(server: object, endpoint: Any) -> bool:
    """Tell whether all that `endpoint` can have are frames that `server`'s leader takes itself.

    A session that is waited for is its own server: whoever receives in place takes its frames.
    """
    return (
        (endpoint is server or getattr(endpoint, "server", None) is server)
        and endpoint.ring is not None
        and endpoint.state == "OPEN"
        and not endpoint.senders
        and not endpoint._control
        and endpoint.leaving is None
    )


def left_to_leader(endpoint: Any) -> bool:
    """Wake a server's leader that waits in this loop, and takes what this ring has by itself.

    That is a client in the same loop: its requests go the server's short way, too.
    """
    server = getattr(endpoint, "server", None)
    if server is None or not is_for(server, endpoint):
        return False
    return server.on_news()


def rang_for(server: object, endpoint: Any, fd: int) -> bool:
    """Take the bell of a ring if that is all there is to do (see `is_for`); else False."""
    return is_for(server, endpoint) and fd == endpoint.fds()[0] and endpoint.ring.hush() is True
