"""Simulated time: what is to happen, in its order."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

Event = Callable[..., None]


class Clock:
    """Calls events when their time has come; those of one moment in the order they were made."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self._events: list[tuple[float, int, Event, tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, event: Event, *given: Any) -> None:
        """Have `event` called at `when`, or now if that has passed."""
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), event, given))

    def run(self, until: float) -> None:
        """Let the time pass."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, event, given = heapq.heappop(events)
            event(*given)
        self.now = until
