"""What a hub does for channels that memory and descriptors alone do not serve: RDMA's."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._fast import Poller
    from ._waiter import Endpoint

OWED_TURNS = 4
"""So many turns of the loop an answer may take before what would go with it goes alone."""
NAP_S = 0.001
PARKS_MAX = 64
"""Waits after which a task yields without waiting for anything: asyncio cancels no task whose
future is done whenever it comes to look, and that can be so for ever where a client and its server
take turns in one loop."""


class Unwoken:
    """A hub's part: who owes its peer a word, who must be asked, whom nothing can wake."""

    poller: Poller | None
    looked_ns: int = 0
    """Time spent in `spin_on`."""
    many_tasks: bool = True
    """There are tasks beside the one that waits; then so many waits are followed by a yield."""

    def __init__(self) -> None:
        super().__init__()
        self.owing: dict[Any, int] = {}
        """Channels that owe their peers a word, and for how many turns of the loop."""
        self.napping: dict[Any, None] = {}
        """Those that nothing can wake: the driver sleeps no longer than `NAP_S`."""
        self.polled: dict[Any, None] = {}
        """Those that no memory tells of: they are asked, however busy the others are."""
        self._parks = 0

    def owe(self, channel: Any) -> None:
        """Have `channel.settle` called in a while, if what it owes has not gone with a frame.

        What it owed before is paid: its peer sends nothing more before that.  So the turns are
        counted anew, and the answer to each message has as many.
        """
        self.owing[channel] = 0

    def settle(self) -> None:
        """(In every turn) let those pay that have owed for long."""
        for channel, turns in list(self.owing.items()):
            if turns >= OWED_TURNS and channel.settle():
                del self.owing[channel]
            else:
                self.owing[channel] = turns + 1

    def ask(self) -> None:
        """(In every turn) look at those that no memory tells of."""
        for endpoint in list(self.polled):
            if endpoint.channel.poll():
                endpoint.on_ready()

    def ask_patiently(self) -> bool:
        """Look at those that no memory tells of for as long as rings are spun for."""
        if not self.polled or not self.spin_on(self._has_answer):
            return False
        self.ask()
        return True

    def _has_answer(self) -> bool:
        return any(endpoint.channel.poll() for endpoint in self.polled)

    def spin_on(self, look: Callable[[], bool]) -> bool:
        """Look until there is something, for as long as rings are spun for; tell whether there is.

        What is looked at is a completion queue, which only Python may poll.
        """
        if look():
            return True
        poller = self.poller
        if poller is None or poller.yield_only or not poller.budget_ns:
            return False
        begun_ns = now_ns = monotonic_ns()
        found = False
        while not found and now_ns - begun_ns < poller.budget_ns:
            found = look()
            now_ns = monotonic_ns()
        self.looked_ns += now_ns - begun_ns
        return found

    def dismiss(self, endpoint: Endpoint) -> None:
        """Forget an endpoint."""
        self.napping.pop(endpoint, None)
        self.polled.pop(endpoint, None)
