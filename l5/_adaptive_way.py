"""What an adaptive client knows of one way, the server's or its own: `native/_adaptive_way.h`."""

from __future__ import annotations

_INFINITY = float("inf")

AVERAGED = 32.0
"""Latencies that an average is over, about."""
GAP_S = 1.0
"""After a silence of so long the next latency counts for a half."""
KNOWN = 8
"""Latencies of a way before it is known: until then it is tried eight times as often, the least of
them is its floor, and none is an outlier."""
OUTLIER = 4.0
"""A latency counts as at most so many averages: a process that was not running is no queue."""
FLOOR_FALL, FLOOR_RISE, FLOOR_RISE_S = 0.125, 0.00390625, 1.0
"""The floor goes down by an eighth of the way to a latency below it, and up by a part of itself:
what the time since the last one is of a second, at most the 256th.  So it is not raised by
processes that were not running for a while, and after some seconds follows what has changed."""
TRIED_AFTER = 32
"""Requests that go the other way before one is tried, however seldom there is a request."""


class Way:
    """What is known of a path."""

    __slots__ = (
        "answers",
        "count",
        "floor",
        "load",
        "mean",
        "moved_at",
        "outstanding",
        "passed_by",
        "seen_at",
        "sum_s",
        "whole",
        "window_at",
    )

    def __init__(self) -> None:
        self.outstanding = 0
        self.passed_by = 0  # requests that went the other way since
        self.moved_at = 0.0  # when it began to be used, or last answered
        self.forget()

    def forget(self) -> None:
        self.count = 0
        self.mean = self.floor = 0.0
        self.load = 1.0  # requests under way when one was answered, that one too, on average
        self.seen_at = self.window_at = -_INFINITY
        self.sum_s = self.whole = (
            0.0  # of a window so far; what all of the last one took on average
        )
        self.answers = 0

    def add(self, latency_s: float, now: float, window_s: float) -> None:
        """Add a latency to its window, which is over with the first one that comes late enough."""
        if self.window_at == -_INFINITY:
            self.window_at = now
        self.sum_s += latency_s
        self.answers += 1
        if now - self.window_at >= window_s:
            self.whole = self.sum_s / self.answers
            self.window_at, self.sum_s, self.answers = now, 0.0, 0

    def note(self, latency_s: float, now: float, most: float, load: float) -> None:
        """Take a latency into the average, as at most so many averages, and into the floor."""
        gap = now - self.seen_at
        if self.count < KNOWN:
            self.count += 1
            if self.count == 1 or latency_s < self.floor:
                self.floor = latency_s
        else:
            if latency_s < self.floor:
                self.floor += (latency_s - self.floor) * FLOOR_FALL
            elif gap > 0.0:
                raised = self.floor * (1.0 + min(FLOOR_RISE, gap / FLOOR_RISE_S))
                self.floor = min(raised, latency_s)
            if latency_s > self.mean * most:
                latency_s = self.mean * most
        weight = 1.0 / (AVERAGED if self.count == KNOWN else self.count)
        if gap > 0.0 and gap < _INFINITY:
            weight = max(weight, gap / (gap + GAP_S))
        self.seen_at = now
        self.mean += (latency_s - self.mean) * weight
        self.load += (load - self.load) * weight

    def takes_s(self) -> float:
        """Return what requests take, those too that waited for the end of a period."""
        return max(self.mean, self.whole)

    def next_s(self) -> float:
        """Return what one more request will take, where those under way wait for each other."""
        return self.takes_s() * (self.outstanding + 1) / self.load

    def is_due(self, now: float, explore: float) -> bool:
        """Tell whether it may be tried, unused for so long that what it takes is little of that."""
        takes, after = self.mean, TRIED_AFTER
        if self.count < KNOWN:
            takes, after = takes / KNOWN, after // KNOWN
        return (
            self.passed_by >= after
            and self.outstanding == 0
            and (now - self.seen_at) * explore > takes
        )
