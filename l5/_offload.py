"""Who does the work, the server or its client?  Policies that a client asks before each request.

The server says how busy it is by heartbeats; the client sees how long its requests take.  A policy
makes a choice of the one (`BackoffPolicy`, after Catfish), the other (`LatencyPolicy`, after
Cell, in `_offload_latency` and `_offload_model`), or both (`AdaptivePolicy`, the one to begin with,
in `_offload_adaptive` and `_adaptive_model`):

    policy.heartbeat(busy_share, sequence, now)    when one has come
    path = policy.choose(now)                      before a request
    policy.observe(path, latency_s, now, reads)    after it, whatever became of it

Times are seconds of any clock that never goes back.  There is no I/O and no clock here, and chance
comes from a function that is given, so every run can be replayed.  `choose` and `observe` are
called for each request: together they stay below 200 ns, and make no objects that outlive them.
"""

from __future__ import annotations

import enum
import random as _random
from collections.abc import Callable
from typing import ClassVar, Protocol

import attrs


class Path(enum.Enum):
    """Where a request is worked on."""

    SERVER = "server"
    CLIENT = "client"


_SERVER = Path.SERVER
_CLIENT = Path.CLIENT

Predictor = Callable[[float], float]
"""Given the busy share of each heartbeat in turn, return the one to expect."""


class OffloadPolicy(Protocol):
    """What a client asks; one object serves one connection."""

    def choose(self, now: float) -> Path:
        """Return the path of the next request."""
        ...

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Take note of a request that is done; `reads` is how many reads followed each other.

        Each `choose` has one, also when the request failed or was cancelled: `latency_s` is
        infinite then.  It may stand for some `requests` at once, which took so long each; for
        0, where a request went this way that another had been chosen for.
        """
        ...

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Take note of what the server said last; the same sequence number again says nothing."""
        ...


class _Always:
    """One path, whatever happens."""

    path: ClassVar[Path]

    def choose(self, now: float) -> Path:
        """Return the path."""
        return self.path

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Learn nothing."""

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Learn nothing."""


@attrs.frozen
class AlwaysServer(_Always):
    """Ask the server, always."""

    path: ClassVar[Path] = _SERVER


@attrs.frozen
class AlwaysClient(_Always):
    """Leave the server alone, always."""

    path: ClassVar[Path] = _CLIENT


# ---- what the next heartbeat will say --------------------------------------------------------


def most_recent(busy_share: float) -> float:
    """Expect what was said last, as the paper does."""
    return busy_share


@attrs.define(eq=False)
class ExponentialAverage:
    """Expect the average, in which each heartbeat counts `weight` and all before it the rest."""

    weight: float = attrs.field(default=0.5, validator=[attrs.validators.gt(0.0)])
    average: float | None = attrs.field(default=None, init=False)

    def __call__(self, busy_share: float) -> float:
        """Return the average with this one in it."""
        before = busy_share if self.average is None else self.average
        self.average = before + (busy_share - before) * self.weight
        return self.average


@attrs.define(eq=False)
class Trend:
    """Expect that what rises goes on rising: overload is seen before it is there.

    Holt's two averages, of the level and of its change from one heartbeat to the next; what is
    expected is the level after `ahead` more of them, never less than 0.
    """

    level_weight: float = 0.5
    change_weight: float = 0.5
    ahead: float = 1.0
    level: float | None = attrs.field(default=None, init=False)
    change: float = attrs.field(default=0.0, init=False)

    def __call__(self, busy_share: float) -> float:
        """Return the level expected `ahead` heartbeats from this one."""
        if self.level is None:
            self.level = busy_share
            return busy_share
        expected = self.level + self.change
        level = expected + (busy_share - expected) * self.level_weight
        self.change += (level - self.level - self.change) * self.change_weight
        self.level = level
        return max(0.0, level + self.change * self.ahead)


# ---- back-off ----------------------------------------------------------------------------------


def _chance() -> Callable[[], float]:
    return _random.Random().random


def share_of(name: str, value: float) -> float:
    """Return a share, or raise `ValueError`."""
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name}={value}: expected a share, more than 0 and at most 1")
    return value


def seconds_of(name: str, value: float) -> float:
    """Return a time, or raise `ValueError`."""
    if not value > 0.0:
        raise ValueError(f"{name}={value}: expected seconds, more than 0")
    return value


class PaperBackoffPolicy:
    """Algorithm 1 of the paper on Catfish, step by step.

    A heartbeat counts once, and not before `interval_s` has passed since the one before it.  If it
    is over `threshold`, the next 0 to n - 1 requests stay with the client, from n to 2n - 1 the
    next time, and so on while each request finds the server busy; a request without a heartbeat
    finds it not busy.  So a client that asks often leaves at most n - 1 requests of each interval
    to itself: use `BackoffPolicy`, except to repeat the paper's figures.

    `random` returns numbers from [0, 1); `predictor` says what to make of the heartbeats.
    """

    __slots__ = (
        "_heard",
        "_predictor",
        "_random",
        "_sequence",
        "_since",
        "busy_rounds",
        "interval_s",
        "n",
        "remaining",
        "threshold",
    )

    def __init__(
        self,
        *,
        n: int = 8,
        threshold: float = 0.95,
        interval_s: float = 0.010,
        predictor: Predictor = most_recent,
        random: Callable[[], float] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"n={n}: expected how many requests a round has, at least 1")
        self.n: int = n
        self.threshold: float = share_of("threshold", threshold)
        self.interval_s: float = seconds_of("interval_s", interval_s)
        self.busy_rounds: int = 0
        self.remaining: int = 0
        self._predictor = predictor
        self._random = random or _chance()
        self._heard: float | None = None  # not 0.0, which the paper uses: an idle server says that
        self._sequence = -1
        self._since = float("-inf")

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Keep the latest until the next request reads it."""
        if sequence != self._sequence:
            self._sequence = sequence
            self._heard = busy_share

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Learn nothing: heartbeats tell all."""

    def choose(self, now: float) -> Path:
        """Return the path of the next request."""
        busy = 0.0
        if self._heard is not None and now - self._since > self.interval_s:
            busy = self._predictor(self._heard)
            self._heard = None
            self._since = now
        if busy > self.threshold and self.remaining <= self.busy_rounds * self.n:
            self.busy_rounds += 1
            self.remaining = int(self._random() * self.n) + (self.busy_rounds - 1) * self.n
        else:
            self.busy_rounds = 0
        if self.remaining > 0:
            self.remaining -= 1
            return _CLIENT
        return _SERVER


class BackoffPolicy:
    """Back off from a busy server, a part of the requests at each heartbeat, and return.

    Catfish's algorithm for clients that ask thousands of times between two heartbeats.  A decision
    stands until the next one; a round is a heartbeat, and N, which the paper fixes at 8 requests,
    is the `n`-th part of what went to the server since the last:

    * Busy, that is, over `threshold`: in the r-th round in a row, a random number of requests from
      [(r - 1) N, r N) that would have gone to the server goes to the client from now on, but at
      most half of them at once.  There is no end to it: in time nearly all stay with the client.
    * Not busy: so much more goes to the server as it has room for: for each request of the
      client's, threshold / busy share times as many as before, but at most twice as many.
    * No heartbeat, for two intervals and then in each: not busy.  Either the network is full, where
      reading more over it would do harm, or nobody asks the server, which then says nothing.

    The requests of both paths alternate as evenly as their shares allow: clients that hear one
    heartbeat at the same time do not go and come back all at once.

    `server_share` is the part that goes to the server, 1 in the beginning.  `random` returns
    numbers from [0, 1); `predictor` says what to make of the heartbeats.
    """

    __slots__ = (
        "_credit",
        "_due",
        "_predictor",
        "_random",
        "_sequence",
        "busy_rounds",
        "interval_s",
        "n",
        "server_share",
        "threshold",
    )

    RETURN_MAX = 2.0
    """How much faster the server's requests may grow than the client's, in a heartbeat."""
    SHARE_MIN = 1e-4
    SHARE_MAX = 0.99
    """Where more than that would go to the server, all does."""

    def __init__(
        self,
        *,
        n: int = 8,
        threshold: float = 0.95,
        interval_s: float = 0.010,
        predictor: Predictor = most_recent,
        random: Callable[[], float] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"n={n}: expected the part of the requests of a round, at least 1")
        self.n: int = n
        self.threshold: float = share_of("threshold", threshold)
        self.interval_s: float = seconds_of("interval_s", interval_s)
        self.server_share: float = 1.0
        self.busy_rounds: int = 0
        self._predictor = predictor
        self._random = random or _chance()
        self._credit = self._random()  # clients that start together do not alternate in step
        self._sequence = -1
        self._due = float("inf")

    def choose(self, now: float) -> Path:
        """Return the path of the next request."""
        if now >= self._due:
            self._miss(now)
        credit = self._credit + self.server_share
        if credit >= 1.0:
            self._credit = credit - 1.0
            return _SERVER
        self._credit = credit
        return _CLIENT

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Learn nothing: heartbeats tell all."""

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Take one step, away from the server or back to it."""
        if sequence == self._sequence:
            return
        self._sequence = sequence
        self._due = now + 2 * self.interval_s
        busy = self._predictor(busy_share)
        if busy > self.threshold:
            self.busy_rounds += 1
            away = (self.busy_rounds - 1 + self._random()) / self.n
            self.server_share = max(self.SHARE_MIN, self.server_share * (1.0 - min(away, 0.5)))
        else:
            self._return(min(self.RETURN_MAX, self.threshold / max(busy, 1e-9)))

    def _miss(self, now: float) -> None:
        """Take a step back to the server, for want of a heartbeat."""
        self._due = now + self.interval_s
        self._return(self.RETURN_MAX)

    def _return(self, factor: float) -> None:
        self.busy_rounds = 0
        more = self.server_share * factor
        share = more / (more + 1.0 - self.server_share)
        self.server_share = share if share <= self.SHARE_MAX else 1.0
