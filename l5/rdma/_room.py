"""The mailroom of an event loop: the flags of all its clients, packed, scanned together.

A client writes one byte, its own: that byte alone is registered in its protection domain.  The
loop's poller looks at all flags of the loop as one spot; a set one leads to its session.
Connections of threads (`l5.blocking`) have no loop in common: their pollers look at one flag each.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from .. import native
from .._errors import TransportUnavailable
from .._loop import current_loop_token
from ._end import Memory

if TYPE_CHECKING:
    from .._fast import Poller, Spot

FLAGS_MAX: Final = 4096
_LINE: Final = 64
_AT_ONCE: Final = 64
_SPOT_FLAGS: Final = 0


class Mailroom:
    """See the module's docstring."""

    server: Any = None
    """No session's: its `on_ready` is called whoever leads the requests."""
    lane: Any = None
    """It has no socket."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._free: list[int] = []
        self._used = 0
        self._channels: dict[int, Any] = {}
        self._sessions: dict[int, Any] = {}
        self._poller: Poller | None = None
        self._spot: Spot | None = None

    # ---- flags ----------------------------------------------------------------------------------

    def take_place(self, channel: Any) -> tuple[int, int]:
        """Give the client of a channel a flag: its place and its address."""
        if self._memory is None:
            self._memory = Memory(FLAGS_MAX)
            self._free = list(range(FLAGS_MAX - 1, -1, -1))
        if not self._free:
            raise TransportUnavailable("rdma", f"this event loop serves {FLAGS_MAX} RDMA clients")
        place = self._free.pop()
        self._used += 1
        self._channels[place] = channel
        self._memory.view[place] = 0
        return place, self._memory.address + place

    def give_back(self, place: int) -> None:
        """Take a flag back, once its region is gone: nobody can write it any more."""
        assert self._memory is not None
        self._memory.view[place] = 0
        del self._channels[place]
        self._free.append(place)
        self._used -= 1
        if not self._used:
            self._memory.close()
            self._memory = None

    # ---- sessions -------------------------------------------------------------------------------

    def enter(self, poller: Any, place: int, session: Any) -> bool:
        """Have the loop's poller look at a flag; False if it is another loop's, or a thread's."""
        if poller.shared or self._poller not in (None, poller):
            return False
        self._poller = poller
        self._sessions[place] = session
        self._cover(max(self._sessions))
        return True

    def set_again(self, place: int) -> None:
        """Put back a flag that was taken too early; its client waits, and writes none."""
        assert self._memory is not None
        self._memory.view[place] = 1

    def leave(self, place: int) -> None:
        """Look at a flag no more."""
        self._sessions.pop(place, None)
        self._cover(max(self._sessions, default=-1))

    def _cover(self, last: int) -> None:
        """Look at as many lines of flags as have sessions."""
        size = (last + _LINE) // _LINE * _LINE
        have = 0 if self._spot is None else self._spot.bytes
        if size == have or self._poller is None:
            return
        if self._spot is not None:
            self._poller.remove_spot(self._spot)
            self._spot = None
        if size:
            assert self._memory is not None
            self._spot = native.Spot(_SPOT_FLAGS, self._memory.address, size)
            self._poller.add_spot(self._spot, self)
        else:
            self._poller = None

    def on_ready(self) -> None:
        """Let the sessions whose flags are set take their rows; fair, a bounded number."""
        spot = self._spot
        if spot is None:
            return
        for place in spot.scan(_AT_ONCE):
            channel = self._channels.get(place)
            if channel is not None:  # also one whose session is still to come
                channel.flagged = True
            session = self._sessions.get(place)
            if session is not None:
                session.on_ready()


_rooms: weakref.WeakKeyDictionary[Any, Mailroom] = weakref.WeakKeyDictionary()


def mailroom() -> Mailroom:
    """Return the mailroom of the running event loop."""
    token = current_loop_token()
    room = _rooms.get(token)
    if room is None:
        room = _rooms[token] = Mailroom()
    return room
