"""A session's memory in its event loop's poller: rings, or what else a channel has to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._fast import Lane
    from ._options import Options
    from ._session import Session


def lane_of(hub: Any, channel: Any) -> Lane | None:
    """Return the short way of a plain socket, where there is one and the hub can use it."""
    make: Any = getattr(channel, "make_lane", None)
    return make() if make is not None and getattr(hub, "lanes", False) else None


def attach(session: Session, options: Options) -> None:
    """Have the loop look at the session's memory, if it has any."""
    ring, hub = session.ring, session.hub
    if ring is not None:
        ring.spin_ns = options.spin_us * 1000
        ring.strict = int(options.strict)
        ring.server = session.server
        hub.ring_poller(options.spin_us).add(ring, session)
        return
    if session.lane is not None:
        if session.server is not None and session.server.reads_lanes:
            session.lane.server = session.server
        limit = min(session.lane.receive_limit, session.takes.max_message_bytes)
        session.lane.receive_limit = limit  # a frame may be longer: by a deadline, unknown here
        hub.ring_poller(0).add_lane(session.lane, session)
        return
    enter: Any = getattr(session.channel, "attach", None)
    if enter is not None:
        enter(hub.ring_poller(options.spin_us), session)
        if getattr(session.channel, "naps", False):
            hub.napping[session] = None
        if not getattr(session.channel, "in_memory", True):
            hub.polled[session] = None


def detach(session: Session) -> None:
    """Have it look no more; a ring leaves when it is closed."""
    if session.lane is not None:
        session.lane.close()
    leave: Any = getattr(session.channel, "detach", None)
    if leave is not None:
        leave()
        channel: Any = session.channel
        session.hub.owing.pop(getattr(channel, "inner", channel), None)  # a tap's is in between
