"""Memory for half-received messages, shared by connections that run in different threads.

The rules are those of `l5._flow.Budget`: within the total everything is granted, and the message
that has waited longest always is, so that nothing can deadlock.  But who is refused is asked again
in its own thread: giving back wakes that thread, and nothing more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from .._flow import Budget
from .._partial import Partial

if TYPE_CHECKING:
    from ._hub import BlockingHub


class TotalBudget:
    """What all connections of a server may hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: int = limit_bytes
        self.used_bytes: int = 0
        self._lock = threading.Lock()
        self._order: OrderedDict[int, None] = OrderedDict()
        self._hungry: dict[ThreadBudget, None] = {}

    def enter(self, key: int, size_bytes: int) -> bool:
        """Count a new message; False when twice the total is in use."""
        with self._lock:
            if self.used_bytes + size_bytes > 2 * self.limit_bytes:
                return False
            self._order[key] = None
            self.used_bytes += size_bytes
            return True

    def take(self, budget: ThreadBudget, key: int, more_bytes: int) -> bool:
        """Take more for a message, or note that its connection wants to be asked again."""
        with self._lock:
            oldest = next(iter(self._order)) == key
            if oldest or self.used_bytes + more_bytes <= self.limit_bytes:
                self.used_bytes += more_bytes
                return True
            self._hungry[budget] = None
            return False

    def leave(self, key: int, size_bytes: int) -> None:
        """Give back what a message held."""
        with self._lock:
            self._order.pop(key, None)
            self.used_bytes -= size_bytes
            hungry, self._hungry = self._hungry, {}
        for budget in hungry:
            budget.ask_again()


class ThreadBudget(Budget):
    """One connection's share."""

    def __init__(self, limit_bytes: int, total: TotalBudget) -> None:
        super().__init__(limit_bytes)
        self._total = total
        self.hub: BlockingHub | None = None

    def enter(self, partial: Partial, size_bytes: int) -> bool:
        """See `Budget.enter`."""
        return self._total.enter(id(partial), size_bytes) and super().enter(partial, size_bytes)

    def _takes(self, partial: Partial, more_bytes: int) -> bool:
        allowed = super()._takes(partial, more_bytes)
        return allowed and self._total.take(self, id(partial), more_bytes)

    def leave(self, partial: Partial) -> None:
        """See `Budget.leave`."""
        if id(partial) in self._partials:
            self._total.leave(id(partial), partial.allowed_bytes)
        super().leave(partial)

    def ask_again(self) -> None:
        """(Any thread) let the connection's own thread try again what was refused."""
        if self.hub is not None:
            self.hub.hungry = True
            self.hub.wake()

    def retry(self) -> None:
        """(The connection's thread) try again what was refused, oldest first."""
        for partial in [p for p in self._partials.values() if p.starved]:
            if id(partial) in self._partials:
                partial.retry()
