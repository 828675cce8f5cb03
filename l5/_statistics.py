"""The counters of a connection."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from ._heartbeat import Beats, Heard
    from ._latency import Watch
    from ._session import Session
    from ._wait import Hub
    from .abc import Channel


class SessionCounters:
    """What a session counts, and how it is watched."""

    space_waits: int = 0
    aborted: int = 0
    answered: int = 0
    """Requests of the peer that were answered, without those of the ring's hot path."""
    long_data: int = 0
    watch: Watch | None = None
    """While somebody watches."""
    number: int = 0
    """Of the connections of this process."""
    role: str = ""
    """What kind of end it is, where that is not to be seen by whether it serves."""
    tap: object = None
    """While its frames are recorded."""
    writer: object = None
    """The task (or thread) that writes a message in place, while it does."""
    heard: Heard | None = None
    """A client's, where heartbeats come in frames."""


_hub_numbers = itertools.count(1)


class HubCounters:
    """What an event loop's hub counts of its sleeping, and how its connections are looked into."""

    blocking: bool = False
    """It is no event loop's, but that of one connection of `l5.blocking`."""
    sleeps: int = 0
    slept_ns: int = 0
    beats: Beats | None = None
    """While it serves clients that want to know how busy it is."""

    def count_sleep(self, slept_ns: int) -> None:
        self.sleeps += 1
        self.slept_ns += slept_ns

    def keep_back(self, session: Session, tap: object) -> None:
        """Have the hot calls of a session's ring stand aside for a tap; for none, be back."""
        ring = session.ring
        if ring is not None:
            ring.shared = STAND_BACK if tap else 0
            ring.server = tap or session.server


STAND_BACK = 2  # enum sharing in native/_fast.h


@attrs.frozen
class ConnectionStatistics:
    """Counters of one connection since it was made."""

    transport: str
    frames_sent: int
    frames_received: int
    bytes_sent: int | None
    """Payload bytes; None where the transport does not count them."""
    bytes_received: int | None
    late_answers: int
    """Answers to requests that had been cancelled meanwhile."""
    aborted: int
    """Messages that the peer gave up in the middle."""
    space_waits: int
    """How often a sender had to wait for room, credit or an answer."""
    bells_rung: int | None
    """(Shared memory) how often the peer had to be woken by a system call."""
    spun_ns: int | None
    """(Shared memory) time spent spinning by all connections of this event loop."""
    calls: int | None
    """(Shared memory) calls into C."""
    in_flight: int
    requests_sent: int = 0
    requests_answered: int = 0
    """Requests of the peer that this side answered, errors included."""
    ring: RingFill | None = None
    """(Shared memory) how full the two rings are."""
    mailbox: MailboxStatistics | None = None
    """(RDMA) what this end asked of its device."""


@attrs.frozen
class MailboxStatistics:
    """What this end of a connection over RDMA asked of its device, connecting included."""

    mode: str
    """``flags``, ``flags+imm`` or ``imm``, as both ends agreed."""
    posts: int
    """Work requests of the send queue, READs included."""
    inline: int
    """Messages that were posted with their bytes."""
    signalled: int
    """Completions that were asked for."""
    completions: int
    """... and that were polled."""
    immediates: int
    """Completions of receives that were polled."""
    receives: int
    """Receives that were posted for them."""
    reads: int
    """How often a server READ how far its client is."""
    notices: int
    """Messages of a server that only free its client's row: no answer was in time."""
    resizes: int
    """Larger rows that were asked for, or given."""
    sleeps: int
    """How often it was armed, to be woken by its device."""


@attrs.frozen
class RingFill:
    """How much of the rings of a connection over shared memory is taken, in bytes."""

    size: int
    """Of each ring."""
    sent: int
    """What the peer has not read; it tells how far it is once in an eighth of the ring."""
    waiting: int
    """What the peer sent and this side has not read."""


@attrs.frozen
class LoopStatistics:
    """What the connections of one event loop spent waiting, since the first one was made.

    Of `l5.blocking`: what one connection did, whichever threads waited for it.
    """

    spins: int
    spun_ns: int
    yields: int
    """How often two `sched_yield` were tried, because spinning would have taken the peer's CPU."""
    yielded_ns: int
    sleeps: int
    slept_ns: int
    number: int = 0
    """Tells those of this process apart."""
    blocking: bool = False
    """It is one connection of `l5.blocking`, which has no event loop."""


def loop_statistics_of(hub: Hub) -> LoopStatistics:
    """Read the counters of an event loop."""
    poller = hub.poller
    return LoopStatistics(
        spins=poller.spins if poller else 0,
        spun_ns=poller.spun_total_ns if poller else 0,
        yields=poller.yields if poller else 0,
        yielded_ns=poller.yielded_total_ns if poller else 0,
        sleeps=hub.sleeps + (poller.rests if poller else 0),
        slept_ns=hub.slept_ns + (poller.rested_ns if poller else 0),
        number=hub.__dict__.setdefault("number", next(_hub_numbers)),
        blocking=hub.blocking,
    )


def _mailbox_of(channel: Channel) -> MailboxStatistics | None:
    counters = getattr(channel, "counters", None)
    if counters is None:
        return None
    return MailboxStatistics(getattr(channel, "mode", ""), **attrs.asdict(counters))


def frames_sent(session: Session) -> int:
    """Return how many frames a session without a ring has sent."""
    carried: int = getattr(session.channel, "carried_sent", 0)
    return session.frames_sent + carried + (session.lane.frames_sent if session.lane else 0)


def frames_received(session: Session) -> int:
    """Return how many frames a session without a ring has received."""
    return session.frames_received + (session.lane.frames_received if session.lane else 0)


def answered_in_c(session: Session) -> int:
    """Return how many requests of the peer were answered by C."""
    hot: Any = session.ring or session.lane
    return 0 if hot is None else hot.answered


def statistics_of(session: Session) -> ConnectionStatistics:
    """Read the counters of a session."""
    ring = session.ring
    poller = session.hub.poller if ring else None
    return ConnectionStatistics(
        transport=session.channel.transport,
        frames_sent=ring.frames_sent if ring else frames_sent(session),
        frames_received=ring.frames_received if ring else frames_received(session),
        bytes_sent=ring.bytes_sent if ring else None,
        bytes_received=ring.bytes_received if ring else None,
        late_answers=session.requests.late_answers,
        aborted=session.aborted,
        space_waits=session.space_waits,
        bells_rung=ring.bells_rung if ring else None,
        spun_ns=poller.spun_total_ns if poller else None,
        calls=ring.calls if ring else None,
        in_flight=session.window.in_flight,
        requests_sent=session.window.requests,
        requests_answered=session.answered + answered_in_c(session),
        ring=RingFill(*ring.fill()) if ring else None,
        mailbox=_mailbox_of(session.channel),
    )
