"""Heartbeats: a server tells its clients how busy it is, and a client finds what it said last.

On shared memory the server overwrites a line of the control page, and the client looks when it
wants to know.  Elsewhere it goes in front of the next answer; what has waited for one for a whole
interval goes alone on a socket, if its client has sent something meanwhile.  Nobody is woken by a
heartbeat, and there is no timer: a server that sleeps says nothing.
Worker threads of native services do this in C (`service_wait.c`); here it is done for servers that
live in an event loop, and for those of `l5.blocking`, of which each connection has a loop of its
own (`blocking/_beats.py`).

How often is agreed on in the hellos: what the client wants, but no oftener than the server tells;
never if either says 0.
"""

from __future__ import annotations

import struct
from time import monotonic, monotonic_ns, process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Protocol

import anyio
import attrs

from ._errors import L5Error
from ._frames import Kind
from ._quota import QuotaShare
from ._statistics import frames_received

if TYPE_CHECKING:
    from ._session import Session
    from ._wait import Hub

PAYLOAD = struct.Struct("<QI")
_MILLION = 1_000_000
_GONE = (L5Error, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Heartbeat(Protocol):
    """What the server said last; `Connection.heartbeat`.

    Reading an attribute costs no system call: a policy may do so before each request.
    """

    @property
    def sequence(self) -> int:
        """Number of the heartbeat, which grows; 0: there has been none."""
        ...

    @property
    def busy_share(self) -> float:
        """The server's useful time over wall time since the heartbeat before, 0 to 1."""
        ...

    @property
    def heard_at(self) -> float:
        """When it came, by `time.monotonic`; 0: never."""
        ...

    @property
    def interval_s(self) -> float:
        """How often one is due while the server is awake, in seconds; 0: never."""
        ...


@attrs.define(eq=False)
class Heard:
    """What came in frames; where there is a ring, `l5._fast.Beat` stands in for it."""

    interval_s: float
    sequence: int = 0
    busy_share: float = 0.0
    heard_at: float = 0.0

    def hear(self, payload: bytes) -> None:
        """Take note of a HEARTBEAT frame."""
        self.sequence, millionths = PAYLOAD.unpack(payload)
        self.busy_share = min(millionths, _MILLION) / _MILLION
        self.heard_at = monotonic()


def heartbeat_of(session: Session) -> Heartbeat:
    """Return what a client finds the server's words in."""
    interval_s = session.sends.heartbeat_ms / 1000
    if session.ring is not None:
        return session.ring.heartbeat(interval_s)
    session.heard = Heard(interval_s)
    return session.heard


@attrs.define(eq=False)
class _Client:
    interval_ns: int
    due_ns: int = 0
    frames: int = 0


class Beats:
    """Tells the clients of an event loop how busy it is; of `beats_of`.

    Useful time is what the loop does not spend sleeping, spinning or yielding on behalf of its
    connections; or the processor time of its thread less what was spun, if that is more: other
    tasks may have run while the connections slept; or the share of the process's quota that is used
    up.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._clients: dict[Session, _Client] = {}
        self._interval_ns = 0
        self._due_ns = 0
        self._then = (0, 0, 0, 0)
        self._quota = QuotaShare(used_ns=self._worked_ns)
        self.sequence: int = 0
        self.busy_share: float = 0.0

    def add(self, session: Session) -> None:
        """Tell the client of a session from now on, until the session ends."""
        interval_ns = session.sends.heartbeat_ms * _MILLION
        self._clients[session] = _Client(interval_ns, frames=frames_received(session))
        session.on_close.append(lambda: self._remove(session))
        if len(self._clients) == 1:
            self._then = self._now()
        self._plan()

    def _remove(self, session: Session) -> None:
        self._clients.pop(session, None)
        self._plan()

    def _plan(self) -> None:
        self._interval_ns = min((c.interval_ns for c in self._clients.values()), default=0)
        self._due_ns = self._then[0] + self._interval_ns

    def look(self) -> None:
        """Say something if it is time; called whenever the loop has run."""
        now_ns = monotonic_ns()
        if now_ns < self._due_ns or not self._clients:
            return
        self._measure()
        self._due_ns = now_ns + self._interval_ns
        for session, client in list(self._clients.items()):
            if now_ns + self._interval_ns // 2 >= client.due_ns and self._tell(session, client):
                client.due_ns = now_ns + client.interval_ns

    def _now(self) -> tuple[int, int, int, int]:
        """Return the wall, processor, waiting and sleeping time until now."""
        poller = self._hub.poller
        waited = poller.spun_total_ns + poller.yielded_total_ns if poller else 0
        waited += self._hub.looked_ns
        return monotonic_ns(), thread_time_ns(), waited, self._hub.slept_ns

    def _worked_ns(self) -> int:
        """Return the processor time of the process, but for what this loop has spun."""
        poller = self._hub.poller
        spun = poller.spun_total_ns if poller else 0
        return process_time_ns() - spun - self._hub.looked_ns

    def _measure(self) -> None:
        before, self._then = self._then, self._now()
        wall, worked, waited, slept = (
            now - then for now, then in zip(self._then, before, strict=True)
        )
        useful = max(wall - waited - slept, worked - waited)
        self.busy_share = min(1.0, max(useful / max(wall, 1), self._quota.share()))
        self.sequence += 1

    def _tell(self, session: Session, client: _Client) -> bool:
        """Return whether it was told, or could have been."""
        if session.state != "OPEN" or session.leaving is not None:
            return False
        millionths = int(self.busy_share * _MILLION)
        try:
            if session.ring is not None:
                session.ring.tell(self.sequence, millionths)
                return True
            said = Kind.HEARTBEAT, 0, 0, PAYLOAD.pack(self.sequence, millionths)
            if session.channel.carry(*said):
                return True  # also to who asks nothing now: his next answer says how busy we were
            if frames_received(session) == client.frames:
                return False
            client.frames = frames_received(session)
            # There may be no room: who does not listen need not know how busy we are.
            session.try_frame(*said)
        except _GONE:
            return False  # the session knows, and has told who waits
        return True


def beats_of(hub: Hub) -> Beats:
    """Return what tells the clients of a loop."""
    if hub.beats is None:
        hub.beats = Beats(hub)
    return hub.beats


def tell_client(session: Session) -> None:
    """Let the client of a server's session hear how busy this loop is, if it wants to."""
    if session.sends.heartbeat_ms:
        beats_of(session.hub).add(session)
