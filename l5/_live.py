"""What lives in this process: sessions and servers, and a snapshot of them, from any thread.

Registered are weak references; reading counters takes no lock and calls nothing of a user's.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

import attrs

from ._latency import measure
from ._statistics import (
    ConnectionStatistics,
    LoopStatistics,
    loop_statistics_of,
    statistics_of,
)

if TYPE_CHECKING:
    from ._serve import Server, ServerStatistics
    from ._service_values import ServiceStatistics
    from ._session import Session
    from .blocking import Server as BlockingServer

    AnyServer = Server | BlockingServer

logger = logging.getLogger("l5.session")

_numbers = itertools.count(1)
_sessions: dict[int, weakref.ref[Session]] = {}
_servers: dict[int, weakref.ref[AnyServer]] = {}
_closed: dict[tuple[str, str], Totals] = {}
_watchers = 0


@attrs.frozen
class ConnectionView:
    """One connection as a snapshot shows it."""

    number: int
    """Counts the connections of this process from 1."""
    role: str
    """``"client"``, ``"server"`` (it was accepted here), or ``"memory"``: the link
    beside a connection over which regions are opened, at either end."""
    peer: str
    state: str
    upgrade: str
    statistics: ConnectionStatistics
    latency_buckets: dict[int, int]
    """Requests by bucket of `l5._latency`, since somebody began to watch; else empty."""


@attrs.frozen
class ServerView:
    """One server as a snapshot shows it."""

    urls: tuple[str, ...]
    statistics: ServerStatistics
    service: ServiceStatistics | None
    """What its native service counts, if it has one: requests of connections that the service's
    threads hold, which are not among a snapshot's connections."""


@attrs.frozen
class Totals:
    """Sums over the connections of one role and transport, those that are closed included."""

    role: str
    transport: str
    connections: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    requests_sent: int = 0
    requests_answered: int = 0
    late_answers: int = 0
    space_waits: int = 0

    def plus(self, counts: ConnectionStatistics) -> Totals:
        """Return the sums with one more connection."""
        return Totals(
            self.role,
            self.transport,
            self.connections + 1,
            self.frames_sent + counts.frames_sent,
            self.frames_received + counts.frames_received,
            self.bytes_sent + (counts.bytes_sent or 0),
            self.bytes_received + (counts.bytes_received or 0),
            self.requests_sent + counts.requests_sent,
            self.requests_answered + counts.requests_answered,
            self.late_answers + counts.late_answers,
            self.space_waits + counts.space_waits,
        )


@attrs.frozen
class Snapshot:
    """What `l5.snapshot` returns."""

    pid: int
    command: str
    time_ns: int
    """Of the monotonic clock."""
    connections: tuple[ConnectionView, ...]
    servers: tuple[ServerView, ...]
    loops: tuple[LoopStatistics, ...]
    totals: tuple[Totals, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return attrs.asdict(self)


def add_session(session: Session) -> None:
    """Note a session; it is counted with the closed ones when it ends."""
    number = next(_numbers)
    session.number = number
    _sessions[number] = weakref.ref(session, lambda _: _sessions.pop(number, None))
    session.on_close.append(lambda: _retire(number, session))
    if _watchers:
        measure(session, True)
    for hook in list(on_session):
        hook(session)
    _open_status_if_wanted()


on_session: list[Any] = []
"""Called with each new session; a tap's."""


def add_server(server: AnyServer) -> None:
    """Note a server that has been started."""
    key = id(server)
    _servers[key] = weakref.ref(server, lambda _: _servers.pop(key, None))
    _open_status_if_wanted()


def remove_server(server: AnyServer) -> None:
    """Forget a server that has been stopped, though somebody may hold it still."""
    _servers.pop(id(server), None)


def _open_status_if_wanted() -> None:
    if os.environ.get("L5_STATUS", "0") not in ("", "0"):
        from ._status import open_if_wanted

        open_if_wanted()


def _retire(number: int, session: Session) -> None:
    if _sessions.pop(number, None) is not None:
        key = (role_of(session), session.channel.transport)
        _closed[key] = _closed.get(key, Totals(*key)).plus(statistics_of(session))
        peer, why = peer_text(session), repr(session.error)
        if session.state == "BROKEN":
            logger.info("connection %d with %s broke: %s", number, peer, str(session.error) or why)
        else:
            logger.debug("connection %d with %s %s: %s", number, peer, session.state.lower(), why)


def sessions() -> list[Session]:
    """Return the open sessions, oldest first."""
    found = [ref() for ref in list(_sessions.values())]
    return [session for session in found if session is not None]


def role_of(session: Session) -> str:
    """Tell which end of a connection a session is."""
    return session.role or ("client" if session.server is None else "server")


def peer_text(session: Session) -> str:
    """Name the other end."""
    peer = session.peer
    return peer.address or (f"pid {peer.pid}" if peer.pid else "?")


def watch(on: bool) -> None:
    """Begin or end to measure latencies; they are measured while anybody wants it."""
    global _watchers
    _watchers += 1 if on else -1
    for session in sessions():
        measure(session, _watchers > 0)


def snapshot() -> Snapshot:
    """Return the counters of every connection, server and event loop of this process.

    Any thread may call it.  Latencies are there only while somebody watches (``l5 top``).
    """
    live = sessions()
    servers = [ref() for ref in list(_servers.values())]
    totals = dict(_closed)
    hubs = {id(session.hub): session.hub for session in live}
    for session in live:
        key = (role_of(session), session.channel.transport)
        totals[key] = totals.get(key, Totals(*key)).plus(statistics_of(session))
    return Snapshot(
        pid=os.getpid(),
        command=" ".join(sys.argv)[:200],
        time_ns=time.monotonic_ns(),
        connections=tuple(_view(session) for session in live),
        servers=tuple(_view_of_server(server) for server in servers if server is not None),
        loops=tuple(loop_statistics_of(hub) for hub in hubs.values()),
        totals=tuple(totals.values()),
    )


def _view(session: Session) -> ConnectionView:
    watched = session.watch
    return ConnectionView(
        number=session.number,
        role=role_of(session),
        peer=peer_text(session),
        state=session.state.lower(),
        upgrade=str(session.report),
        statistics=statistics_of(session),
        latency_buckets=watched.histogram().sparse() if watched else {},
    )


def _view_of_server(server: AnyServer) -> ServerView:
    native: Any = getattr(server, "_native", None)
    try:
        service = native.statistics() if native else None
    except RuntimeError:  # it is the parent's
        service = None
    return ServerView(server.urls, server.statistics(), service)


def _drop_in_child() -> None:
    _sessions.clear()
    _servers.clear()
    _closed.clear()


os.register_at_fork(after_in_child=_drop_in_child)
