"""Latencies: a histogram, and what measures requests while somebody watches.

Nothing is measured unless it is asked for: `measure` then makes a `Latencies` for the
requests that go through Python, and asks the ring (`native/_latency.h`, the same buckets) to note
those that do not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._fast import Ring
    from ._session import Session

BUCKETS = 272
"""Eight for each power of two; the last one begins at 64 s and takes all above."""
_EXACT = 8
_PACKED = struct.Struct(f"={BUCKETS}Q")


def bucket_of(ns: int) -> int:
    """Return the bucket of a duration; the one of `native/_latency.h`."""
    if ns < _EXACT:
        return max(ns, 0)
    exponent = ns.bit_length() - 1
    return min((exponent - 2) * 8 + ((ns >> (exponent - 3)) & 7), BUCKETS - 1)


def bucket_begin_ns(bucket: int) -> int:
    """Return the least duration of a bucket."""
    if bucket < _EXACT:
        return bucket
    exponent = bucket // 8 + 2
    return (8 + bucket % 8) << (exponent - 3)


class Histogram:
    """Counts of durations by bucket."""

    def __init__(self, counts: Sequence[int] = ()) -> None:
        self.counts: list[int] = list(counts) or [0] * BUCKETS

    @classmethod
    def from_ring(cls, packed: bytes) -> Histogram:
        """Make one of what `Ring.latencies` gives: empty when the ring is not watched."""
        return cls(_PACKED.unpack(packed) if packed else ())

    def add(self, ns: int) -> None:
        """Count a duration."""
        self.counts[bucket_of(ns)] += 1

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """Return the sum of both."""
        return Histogram([a + b for a, b in zip(self.counts, other.counts, strict=True)])

    def since(self, earlier: Histogram) -> Histogram:
        """Return what was counted after `earlier`; of a histogram that began anew, all."""
        rest = [a - b for a, b in zip(self.counts, earlier.counts, strict=True)]
        return self if min(rest) < 0 else Histogram(rest)

    def percentile_ns(self, percent: float) -> float | None:
        """Return the middle of the bucket that holds this percentile; None without any."""
        total = self.total
        if not total:
            return None
        wanted = max(1, -(-total * percent // 100))
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return (bucket_begin_ns(bucket) + bucket_begin_ns(bucket + 1)) / 2
        raise AssertionError("the counts add up to their total")

    def sparse(self) -> dict[int, int]:
        """Return the buckets that are not empty, for JSON."""
        return {bucket: count for bucket, count in enumerate(self.counts) if count}

    @classmethod
    def from_sparse(cls, buckets: dict[str, int] | dict[int, int]) -> Histogram:
        """Make one of what `sparse` gave, also after a trip through JSON."""
        histogram = cls()
        for bucket, count in buckets.items():
            histogram.counts[int(bucket)] += int(count)
        return histogram


class Watch:
    """Measures the requests of one session: those of the ring's hot path are noted in C.

    A request that began in the hot path and did not end there has begun at `begun_ns`, until the
    next one begins.
    """

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring
        self._begun_ns = 0
        self._histogram = Histogram()
        if ring is not None:
            ring.watch(True)

    @property
    def begun_ns(self) -> int:
        """When the last request was sent, or taken to be handled."""
        if self._ring is None:
            return self._begun_ns
        return self._ring.begun_ns

    def begin(self) -> int:
        """Note and return the time at which a request begins."""
        self._begun_ns = monotonic_ns()
        return self._begun_ns

    def end(self, begun_ns: int) -> None:
        """Count a request that has ended now."""
        self._histogram.add(monotonic_ns() - begun_ns)

    def histogram(self) -> Histogram:
        """Return what was measured until now."""
        if self._ring is None:
            return Histogram(self._histogram.counts)
        return self._histogram.plus(Histogram.from_ring(self._ring.latencies()))

    def stop(self) -> None:
        """Measure no more."""
        if self._ring is not None:
            self._ring.watch(False)


def end(watch: Watch | None, begun_ns: int) -> None:
    """Count a request that has ended now, if its begin was noted and somebody still watches."""
    if watch is not None and begun_ns:
        watch.end(begun_ns)


def measure(session: Session, on: bool) -> None:
    """Begin or end to measure the requests of a session; any thread that holds the GIL may."""
    if session.watch is not None and not on:
        session.watch.stop()
    if on != (session.watch is not None):
        session.watch = session.requests.watch = Watch(session.ring) if on else None
        if session.lane is not None:
            session.lane.aside += 1 if on else -1
