"""Credit and reassembly: what may be sent, what is stored meanwhile, and what that may cost.

Two windows keep a receiver's memory bounded, whatever the sender does:

* DATA: each message costs its size and a little, at most half a window; the sender may be a
  window ahead of what the application took (`Window`).
* Long messages of any kind: after the first `credit_bytes` of a message its sender needs CREDIT
  for more.  The receiver grants it out of a `Budget` that all connections of a server share.  The
  message that has waited longest is always granted, so that the budget cannot deadlock; a budget
  is therefore overdrawn by at most one message.

No I/O and no clock here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ._errors import RemoteProtocolError
from ._partial import Partial, ignore

if TYPE_CHECKING:
    from ._hello import Limits
    from ._wait import Waiter

AHEAD = 4
"""Times `credit_bytes` that one grant allows while half of all budgets is free."""
FRAME_COST = 64
"""What a data message costs of its window beside its payload, in bytes."""
STALL_BYTES = 64 << 10
"""What the oldest half-received message must at least grow by between two looks (`Budget.stalled`)
while others have to wait for it."""


def data_cost(size_bytes: int, window_bytes: int) -> int:
    """Return what a data message costs of a window.

    At most half of it, because the receiver may owe credit for up to half a window: a message
    larger than the window could otherwise never be sent.
    """
    return min(size_bytes + FRAME_COST, window_bytes // 2)


@attrs.define(eq=False)
class Window:
    """The counters of one connection; on shared memory the C type `Ring` has the same names."""

    peer_window: int
    """The peer's window for our data."""
    data_window: int
    """Our window for the peer's data."""
    in_flight_max: int
    handling_max: int
    next_id: int = 1
    requests: int = 0
    """Requests sent."""
    in_flight: int = 0
    handling: int = 0
    data_sent: int = 0
    data_allowed: int = 0
    data_arrived: int = 0
    data_taken_total: int = 0
    data_told: int = 0
    credit_owed: int = 0
    queued: int = 0
    """Who waits for room to send; while there is anybody, the hot path does not push in."""
    partials: int = 0
    """Messages of the peer that are half here; while there are any, the hot path stays away."""

    def __attrs_post_init__(self) -> None:
        self.data_allowed = self.peer_window

    def data_taken(self, size_bytes: int) -> None:
        """Note that the application took a message; sets `credit_owed` when that is due."""
        self.data_taken_total += data_cost(size_bytes, self.data_window)
        if self.data_taken_total - self.data_told >= self.data_window // 2:
            self.credit_owed = 1


def window_of(ring: Any, sends: Limits, takes: Limits) -> Any:
    """Return the counters of a connection: those of its ring, set, or a `Window`."""
    if ring is None:
        return Window(
            peer_window=sends.data_window_bytes,
            data_window=takes.data_window_bytes,
            in_flight_max=sends.in_flight_max,
            handling_max=takes.in_flight_max,
        )
    ring.peer_window = ring.data_allowed = sends.data_window_bytes
    ring.data_window = takes.data_window_bytes
    ring.in_flight_max = sends.in_flight_max
    ring.handling_max = takes.in_flight_max
    return ring


class Budget:
    """Bytes that half-received messages may hold: of one connection, within those of its server.

    Both count allowances, not only what has arrived.  The initial ones need no grant: a connection
    announces one that fits its budget as often as the peer may have messages open
    (`Options.initial_credit_bytes`); a server whose connections together hold twice its budget
    takes no more.
    """

    def __init__(self, limit_bytes: int, parent: Budget | None = None) -> None:
        self.limit_bytes: int = limit_bytes
        self.used_bytes: int = 0
        self._parent = parent
        self._partials: OrderedDict[int, Partial] = OrderedDict()
        self._pressed = False
        """Somebody was refused, and nothing has been given back since."""
        self._seen: tuple[int, int] | None = None
        """The oldest message and its size when `stalled` last looked."""

    def enter(self, partial: Partial, size_bytes: int) -> bool:
        """Count a new partial message with its initial allowance; False: the server is full."""
        parent = self._parent
        if parent is not None:
            if parent.used_bytes + size_bytes > 2 * parent.limit_bytes:
                parent._pressed = True
                return False
            parent.enter(partial, size_bytes)
        self._partials[id(partial)] = partial
        partial.allowed_bytes = size_bytes
        self.used_bytes += size_bytes
        return True

    def extend(self, partial: Partial, allowed_bytes: int) -> bool:
        """Raise what a message may hold if there is room, or if it has waited longest."""
        more = allowed_bytes - partial.allowed_bytes
        parent = self._parent
        if not self._takes(partial, more) or (parent and not parent._takes(partial, more)):
            partial.starved = True
            return False
        partial.starved = False
        partial.allowed_bytes = allowed_bytes
        self.used_bytes += more
        if parent is not None:
            parent.used_bytes += more
        return True

    def _takes(self, partial: Partial, more_bytes: int) -> bool:
        oldest = next(iter(self._partials)) == id(partial)
        takes = oldest or self.used_bytes + more_bytes <= self.limit_bytes
        self._pressed |= not takes
        return takes

    def roomy(self, more_bytes: int) -> bool:
        """Tell whether half of the budget is left after so much more, of the server's, too."""
        if self.used_bytes + more_bytes > self.limit_bytes // 2:
            return False
        return self._parent is None or self._parent.roomy(more_bytes)

    def stalled(self) -> Partial | None:
        """Return the oldest message if others starve and it has hardly grown since the last call.

        It alone is granted more whatever the budget, so who begins one and leaves it at that would
        otherwise keep everybody else's waiting for as long as it stays.
        """
        if not self._pressed or not self._partials:
            self._seen = None
            return None
        key, oldest = next(iter(self._partials.items()))
        last = self._seen
        if last is not None and last[0] == key and oldest.size_bytes < last[1] + STALL_BYTES:
            return oldest
        self._seen = (key, oldest.size_bytes)
        return None

    def leave(self, partial: Partial) -> None:
        """Forget a message, and let those that starve ask again, oldest first."""
        if self._partials.pop(id(partial), None) is None:
            return
        self.used_bytes -= partial.allowed_bytes
        if self._parent is not None:
            self._parent.leave(partial)
        self._pressed = False
        for other in [p for p in self._partials.values() if p.starved]:
            if id(other) in self._partials:  # a grant that failed may have ended its connection
                other.retry()


class Quota:
    """An amount that several take from; what is taken must be given back."""

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.used: int = 0

    def fits(self, amount: int) -> bool:
        """Tell whether so much is left."""
        return self.used + amount <= self.limit

    def take(self, amount: int) -> bool:
        """Take so much, or nothing and return False."""
        if not self.fits(amount):
            return False
        self.used += amount
        return True

    def give_back(self, amount: int) -> None:
        """Give back what was taken."""
        self.used -= amount


class Refused(Exception):
    """A request is here, and nothing of it: there was no memory when it began."""


class Reassembly:
    """Put the segments of one connection's long messages together.

    A key is (whether it answers a request of ours, id): both ends count ids for themselves.
    """

    def __init__(
        self,
        *,
        message_limit: int,
        credit_bytes: int,
        partials_max: int,
        budget: Budget,
        grant: Callable[[tuple[bool, int], int], None],
        cut: Callable[[Exception], None] = ignore,
    ) -> None:
        self._message_limit = message_limit
        self._credit_bytes = credit_bytes
        self._partials_max = partials_max
        self._budget = budget
        self._grant = grant
        self._cut = cut
        self._partials: dict[tuple[bool, int], Partial] = {}
        self._unasked = 0
        """Of them not answers: of those there are no more than requests of ours."""

    def __contains__(self, key: tuple[bool, int]) -> bool:
        return key in self._partials

    def __len__(self) -> int:
        return len(self._partials)

    def add(
        self, key: tuple[bool, int], payload: bytes, more: bool, refusable: bool = False
    ) -> bytes | None:
        """Take a segment; return the whole message with its last one.

        One that is `refusable`, and for which the server has no memory, is taken and thrown away;
        its last segment raises `Refused`.
        Raises `RemoteProtocolError` for one that was not granted or makes the message too long.
        """
        partial = self._partials.get(key)
        if partial is None:
            if not more:
                return payload
            partial = self._open(key, refusable)
        partial.append(payload)
        if partial.size_bytes > self._message_limit:
            raise RemoteProtocolError(
                f"the peer sent a message of more than the agreed {self._message_limit} bytes"
            )
        if partial.size_bytes > partial.allowed_bytes:
            raise RemoteProtocolError(
                f"the peer sent {partial.size_bytes} bytes of a message of which "
                f"{partial.allowed_bytes} were granted"
            )
        if more:
            self._extend(partial)
            return None
        message = partial.message()
        refused = partial.refused
        self.drop(key)
        if refused:
            raise Refused("the server's memory for half-received messages is used up: try again")
        return message

    def _open(self, key: tuple[bool, int], refusable: bool) -> Partial:
        if not key[0] and self._unasked >= self._partials_max:
            raise RemoteProtocolError(
                f"the peer began more than {self._partials_max} long messages at once"
            )
        partial: Partial = Partial(key, lambda: self._extend(partial), self._cut)
        entered = self._budget.enter(partial, self._credit_bytes)
        if not entered and not refusable:
            raise RemoteProtocolError(
                "the server's memory for half-received messages is used up: try again later"
            )
        self._partials[key] = partial
        self._unasked += not key[0]
        if entered:
            partial.borrow()
        else:
            partial.refused, partial.allowed_bytes = True, self._message_limit
            self._grant(key, self._message_limit)
        return partial

    def _extend(self, partial: Partial) -> None:
        # Half an allowance ahead: the sender never stops while there is budget.
        credit = self._credit_bytes
        if partial.allowed_bytes - partial.size_bytes > credit // 2:
            return
        if self._budget.roomy(AHEAD * credit):
            credit *= AHEAD  # each grant wakes the sender
        allowed = min(partial.size_bytes + credit, self._message_limit)
        if allowed > partial.allowed_bytes and self._budget.extend(partial, allowed):
            self._grant(partial.key, allowed)

    def drop(self, key: tuple[bool, int]) -> bool:
        """Forget a message (complete, aborted or failed); return whether it was there."""
        partial = self._partials.pop(key, None)
        if partial is None:
            return False
        self._unasked -= not key[0]
        partial.clear()  # now: a partial is part of a cycle, by its `retry`
        self._budget.leave(partial)
        return True

    def clear(self) -> None:
        """Forget everything: the connection has ended."""
        for key in list(self._partials):
            self.drop(key)


class Credit:
    """(Sender) what the receiver granted of one long message."""

    __slots__ = ("allowed_bytes", "cancelled", "waiter")

    def __init__(self, allowed_bytes: int) -> None:
        self.allowed_bytes: int = allowed_bytes
        self.cancelled: bool = False
        self.waiter: Waiter | None = None

    def wake(self) -> None:
        """Let the sender go on."""
        if self.waiter is not None:
            self.waiter.wake()
