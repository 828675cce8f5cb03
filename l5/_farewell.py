"""Closing a connection without losing what was sent.

A TCP socket is closed in two steps (`leave`): whoever closes it while bytes of the peer's arrive
(credit, say) makes the system send a reset, and drop what the peer has not got yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from . import _transmit
from ._wait import Waiter

if TYPE_CHECKING:
    from ._session import Session

logger = logging.getLogger("l5.session")

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class _Leaving:
    """What a hub watches of a connection that is closed but for its socket."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.waiter = Waiter()
        self.done: bool = session.channel.part()

    def fds(self) -> tuple[int, ...]:
        return (self._session.channel.fileno(),)

    def wants_write(self) -> bool:
        return False

    def on_ready(self) -> None:
        self.done = self.done or self._session.channel.part()
        if self.done:
            self.waiter.wake()

    def on_event(self, fd: int, readable: bool, writable: bool) -> None:
        del fd, readable, writable
        self.on_ready()

    def arm(self) -> bool:
        return True

    def drop_in_child(self) -> None:
        self._session.drop_in_child()


async def leave(session: Session) -> None:
    """Close a session once the peer's system has all that was accepted, or time is up.

    Time is ``close_timeout``; what was not taken by then is lost, and logged.  Cancelled, it closes
    at once.
    """
    if session.state != "OPEN":
        session.close()
        return
    taken = False
    try:
        with session.hub.move_on_after(session.close_timeout):
            await _flush(session)
            if session.state == "OPEN":
                session.close(keep_channel=True)
            taken = session.channel.part() or await _wait_parted(session)
        if not taken:
            logger.warning(
                "%r was closed after %g s (close_timeout) before its peer had taken all that was"
                " sent: the rest is lost",
                session,
                session.close_timeout,
            )
    finally:
        session.close()
        session.release()


async def _flush(session: Session) -> None:
    if session.channel.wants_write:
        with _transmit.in_line(session) as waiter:
            while session.state == "OPEN" and not session.flush():
                await _transmit.wait_room(session, waiter)


async def _wait_parted(session: Session) -> bool:
    hub, leaving = session.hub, _Leaving(session)
    hub.attach(leaving)
    pause = _FIRST_PAUSE_S
    try:
        while not leaving.done:
            # That the peer's system has everything is no event of any descriptor: look again.
            with hub.move_on_after(pause):
                await hub.park(leaving.waiter)
            leaving.on_ready()
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    finally:
        hub.detach(leaving)
    return True
