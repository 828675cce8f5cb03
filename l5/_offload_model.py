"""The policy of Cell as a model: join the shorter queue, by what the last requests took.

`l5/native/_policy.c` does the same, step by step and sum by sum, at a fraction of the cost; this
serves where there is no C, and says what that has to do.

Section 2.5 of the paper on Cell.  With l_s the latency of a request to the server, l_r that of one
read of its memory, m the reads that follow each other in a request and RTT the fastest read ever
seen, the server is asked if

    l_s - RTT  <  m (l_r - RTT)

since either side is the length of a queue, in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import log, sqrt

from ._offload import Path

_SERVER = Path.SERVER
_CLIENT = Path.CLIENT
_REQUESTS = 128
_BATCH = 16
"""Averages change every so many requests, by at most the first so many latencies of each path:
most of the cost of a policy that looks at each request would lie in looking."""
_GAP_MAX = 1e15
_INFINITY = float("inf")
_KNOWN = 8
"""Latencies before one can be told to be an outlier."""


class _History:
    """The moving average of the latest latencies, without those that lie too far from it.

    What is remembered is a count, a sum and a sum of squares of each batch, oldest first.
    """

    __slots__ = (
        "_batches",
        "_dropped",
        "_kept",
        "_outlier",
        "_squares",
        "_sum",
        "_window",
        "count",
        "mean",
        "new",
    )

    def __init__(self, window: int, outlier: float) -> None:
        self._window = window
        self._outlier = outlier
        self.new: list[float] = []
        self.forget()

    def forget(self) -> None:
        self._batches: deque[tuple[int, float, float]] = deque()
        self.count = self._kept = self._dropped = 0
        self._sum = self._squares = self.mean = 0.0
        self.new.clear()

    def digest(self) -> None:
        """Take what is new into the average, all of it judged by the average until now."""
        fresh, self.new = self.new, []
        if self.count >= _KNOWN:
            fresh = self._without_outliers(fresh)
        if self._kept + self._dropped >= self._window:
            if self._dropped > self._kept:  # what was thought to be far off is the truth now
                self.forget()
                return
            self._kept = self._dropped = 0
        if fresh:
            total = squares = 0.0
            for value in fresh:  # not `sum`, which rounds otherwise
                total += value
                squares += value * value
            self._add((len(fresh), total, squares))

    def _without_outliers(self, fresh: list[float]) -> list[float]:
        mean = self.mean
        variance = self._squares / self.count - mean * mean
        # Never less than a hundredth of the mean: where all are equal, all else is no outlier.
        far = self._outlier * max(sqrt(max(variance, 0.0)), 0.01 * mean)
        low, high = mean - far, mean + far
        if low < min(fresh) and max(fresh) < high:
            self._kept += len(fresh)
            return fresh
        kept = [value for value in fresh if low < value < high]
        self._kept += len(kept)
        self._dropped += len(fresh) - len(kept)
        return kept

    def _add(self, batch: tuple[int, float, float]) -> None:
        self._batches.append(batch)
        self.count += batch[0]
        self._sum += batch[1]
        self._squares += batch[2]
        while self.count - self._batches[0][0] >= self._window:
            count, total, squares = self._batches.popleft()
            self.count -= count
            self._sum -= total
            self._squares -= squares
        self.mean = self._sum / self.count


class LatencyModel:
    """What `l5.LatencyPolicy` does; its arguments have been checked."""

    __slots__ = (
        "_client",
        "_explore",
        "_last",
        "_random",
        "_reads_first",
        "_reads_new",
        "_server",
        "_stale_s",
        "_until_digest",
        "_until_event",
        "_until_other",
        "better",
        "reads",
        "round_trip_s",
    )

    def __init__(
        self,
        random: Callable[[], float],
        window: int,
        outlier: float,
        explore: float,
        stale_s: float,
        reads: float,
    ) -> None:
        self._server = _History(window, outlier)
        self._client = _History(window, outlier)
        self._reads_new: list[int] = []
        self._explore = explore
        self._stale_s = stale_s
        self._reads_first = reads
        self._random = random
        self._last = float("-inf")
        self._forget()

    def _forget(self) -> None:
        self._server.forget()
        self._client.forget()
        self._reads_new.clear()
        self.reads: float = self._reads_first
        self.round_trip_s: float = float("inf")
        self.better: Path = _SERVER
        self._until_digest: int = 1
        self._until_other: int = self._gap() - 1
        self._until_event = 0  # requests to the next digest or the next try of the other path

    def choose(self, now: float) -> Path:
        """Return the path of the next request."""
        last, self._last = self._last, now
        if self._until_event and now - last <= self._stale_s:
            self._until_event -= 1
            return self.better
        return self._choose(now - last)

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Keep a latency until it is taken into the average of its path.

        What is not finite or negative is no latency, and is not looked at; less than one read, or
        an infinity of them, says nothing of how many there are.
        """
        if not 0.0 <= latency_s < _INFINITY:
            return
        if path is _SERVER:
            if len(new := self._server.new) < _BATCH:
                new.append(latency_s)
        elif len(new := self._client.new) < _BATCH:
            new.append(latency_s)
            self._reads_new.append(reads if 1 <= reads < _INFINITY else 0)

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Learn nothing: latencies tell all."""

    def _choose(self, silence_s: float) -> Path:
        if silence_s > self._stale_s:
            self._forget()
        if self._until_digest == 0:
            self._digest()
            both = self._server.count and self._client.count
            self._until_digest = _REQUESTS if both else 1
        chosen = self.better
        if self._until_other == 0:
            self._until_other = self._gap()
            chosen = _CLIENT if chosen is _SERVER else _SERVER
        step = min(self._until_digest, self._until_other)
        self._until_digest -= step
        self._until_other -= step
        self._until_event = step - 1
        return chosen

    def _gap(self) -> int:
        """Return after how many requests the other path has its turn, for a coin at each."""
        return 1 + int(min(_GAP_MAX, log(1.0 - self._random()) / self._explore))

    def _digest(self) -> None:
        told = [reads for reads in self._reads_new if reads]
        if told:  # whole numbers: no sum of them is rounded
            weight = min(1.0, len(told) / 16.0)
            self.reads += (sum(told) / len(told) - self.reads) * weight
        client = self._client
        if client.new:
            each = [
                latency_s / (reads or self.reads)
                for latency_s, reads in zip(client.new, self._reads_new, strict=True)
            ]
            self.round_trip_s = min(self.round_trip_s, *each)
            client.new = each
            self._reads_new.clear()
            client.digest()
        if self._server.new:
            self._server.digest()
        self._judge()

    def _judge(self) -> None:
        if not self._server.count:
            self.better = _SERVER
        elif not self._client.count:
            self.better = _CLIENT
        else:
            queue_s = self._server.mean - self.round_trip_s
            reads_s = self.reads * (self._client.mean - self.round_trip_s)
            self.better = _SERVER if queue_s < reads_s else _CLIENT
