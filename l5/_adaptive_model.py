"""The policy that adaptive clients have unless told otherwise, as a model.

`l5/native/_adaptive.c` does the same, step by step and sum by sum, at a fraction of the cost; this
serves where there is no C, and says what that has to do.

What tells a client whom to ask?  Latencies alone do not: who searches by itself keeps its event
loop busy, and answers of the server, noticed late, then seem to take as long.  Heartbeats alone do
not: they come late, and say nothing of the way.  So:

    the client's own way is the shorter one, empty (`floor`) as well as now (`mean`),
        or now a fourth of the server's                      -> the client
    else, of several requests at a time,
        where more gets done if all of them stay             -> the client
    else, of the requests, the part `server_share`           -> the server
        but not while it has answered nothing for a while,
        or has that part of the requests under way           -> the client
    the rest                                                 -> the client,
        but one of several at a time                         -> the server, if it is not far slower

The last line is for a client that has several requests under way.  Its processor and the server's
are two; a server that is never without a request of ours gives all that it has, and the others wait
for nothing meanwhile.  One is enough for that; if not, then the server is not busy, and says so.
But to ask costs the client's processor as well, and to wake a server that sleeps, and wait for it,
may cost more than to search, whatever the server has to spare.  So whether the server should have
any of several requests is tried: what gets done in windows of time tells.

The share is moved by heartbeats, as `BackoffPolicy` moves it, but that a busy server is left only
if that pays.  The way that is not used is tried so rarely that it costs `explore` of the time.
"""

from __future__ import annotations

from collections.abc import Callable

from ._adaptive_way import OUTLIER, Way
from ._offload import Path

_SERVER = Path.SERVER
_CLIENT = Path.CLIENT
_INFINITY = float("inf")

FIRST = 64
"""Answers of the server before the client's way is tried: who asks little need not open it."""
MUCH = 4.0
"""So many times slower than the client's own way, the server need not say that it is busy."""
PRICE = 2.0
"""A busy server is left where the client's own way takes less than so many times as long: each
request that waits there makes others wait as well.  And of several requests the server may have one
where that takes less than so many times as long as here."""
CLEAR, CLEAR_AFTER = 8.0, 2
"""While the server is not busy, the client's way is tried as many times more rarely as it is slower
at its best, at most so many, if so many latencies say so: the first may have filled caches."""
RETURN_MAX, RETURN_PAYS = 2.0, 1.2
SHARE_MIN, SHARE_MAX = 1e-4, 0.99
WINDOW = 4.0
"""Intervals of heartbeats that latencies are summed up over, outliers and all: a server that is
held back for the rest of each period answers most requests fast, and some not until then."""
TRIED_EACH, TRIED_FIRST, TRIES_MAX = 16, 4, 16
"""After so many windows the server gets some of several requests, or none, whichever seemed worse;
after more, where it seemed so much worse that it would cost more than `explore`.  But first after
four, then eight and so on: one window may have been a bad one, above all the first."""


class AdaptiveModel:
    """What `l5.AdaptivePolicy` does; its arguments have been checked."""

    __slots__ = (
        "_better",
        "_busy",
        "_client",
        "_count",
        "_credit",
        "_due",
        "_explore",
        "_last",
        "_offered",
        "_random",
        "_rates",
        "_sequence",
        "_server",
        "_tries",
        "_until_first",
        "_window_at",
        "_windows",
        "busy_rounds",
        "interval_s",
        "lends",
        "n",
        "server_share",
        "stale_s",
        "threshold",
    )

    def __init__(
        self,
        random: Callable[[], float],
        n: int,
        threshold: float,
        interval_s: float,
        explore: float,
        stale_s: float,
    ) -> None:
        self.n: int = n
        self.threshold: float = threshold
        self.interval_s: float = interval_s
        self.stale_s: float = stale_s
        self._random = random
        self._server, self._client = Way(), Way()
        self._sequence = -1
        # Clients that start together neither alternate in step nor try things together.
        self._credit = random()
        self._explore = explore / (0.5 + random())
        self._last = -_INFINITY
        self._forget(0.0)

    def _forget(self, now: float) -> None:
        self._server.forget()
        self._client.forget()
        self.server_share: float = 1.0
        self.busy_rounds: int = 0
        self._busy = False  # what the server said last
        self._until_first = FIRST
        self._due = _INFINITY
        self.lends: bool = True
        """Whether the server gets some of several requests, just now."""
        self._rates = [0.0, 0.0]  # requests in a second, while it got none, and while it got some
        self._windows = 0  # since the way was tried that seemed worse
        self._better = True  # the way that seemed better,
        self._tries = 0  # and how often the other one has been tried since it did
        self._window_at = now
        self._count = 0
        self._offered = False  # in this window, there was one that could go either way

    @property
    def server_s(self) -> float:
        """What a request to the server takes, on average; 0: not known."""
        return self._server.mean

    @property
    def client_s(self) -> float:
        """What a request takes that the client serves by itself; 0: not known."""
        return self._client.mean

    @property
    def server_least_s(self) -> float:
        """What a request to the server takes at its best, about; 0: not known."""
        return self._server.floor

    @property
    def client_least_s(self) -> float:
        """What one of the client's own takes at its best, about; 0: not known."""
        return self._client.floor

    @property
    def outstanding(self) -> tuple[int, int]:
        """Requests under way to the server, and of the client's own."""
        return self._server.outstanding, self._client.outstanding

    # ---- each request ----------------------------------------------------------------------------

    def choose(self, now: float) -> Path:
        """Return the path of the next request."""
        self._wake(now)
        if now >= self._due:
            self._due = now + self.interval_s
            self._return(RETURN_MAX)
        if now - self._window_at >= self.interval_s * WINDOW:
            self._judge(now)
        self._count += 1
        path = self._path(now)
        way, other = self._server, self._client
        if path is _CLIENT:
            way, other = other, way
        if way.outstanding == 0:
            way.moved_at = now
        way.outstanding += 1
        way.passed_by = 0
        other.passed_by += 1
        return path

    def _wake(self, now: float) -> None:
        """Forget what was before a long silence."""
        if now - self._last > self.stale_s:
            self._forget(now)
        self._last = now

    def _path(self, now: float) -> Path:
        server, client = self._server, self._client
        if server.outstanding and now - server.moved_at > self.stale_s:
            server.outstanding = 0  # who never says what became of requests is forgiven
        if client.outstanding and now - client.moved_at > self.stale_s:
            client.outstanding = 0
        if client.count and self._is_shorter():
            if server.is_due(now, self._explore):
                return _SERVER
            return _SERVER if self._may_have_one() else _CLIENT
        if self._keeps_all():
            return _SERVER if server.is_due(now, self._explore) else _CLIENT
        credit = self._credit + self.server_share
        if credit < 1.0:
            self._credit = credit
            return _SERVER if self._may_have_one() else _CLIENT
        self._credit = credit - 1.0
        if not client.count:
            if self._until_first:
                self._until_first -= 1
                return _SERVER
            return _SERVER if client.outstanding else _CLIENT
        if server.outstanding and self._has_enough(now):
            return _CLIENT
        return _CLIENT if client.is_due(now, self._explore / self._clearness()) else _SERVER

    def _clearness(self) -> float:
        """Return how many times slower the client's way is at its best; 1 where that may change."""
        server, client = self._server, self._client
        if client.count < CLEAR_AFTER or not server.count or self._busy:
            return 1.0
        if not (client.mean > server.mean and client.floor > server.floor):
            return 1.0
        return CLEAR if client.floor >= server.floor * CLEAR else client.floor / server.floor

    def _is_shorter(self) -> bool:
        """Tell whether the client's way is, whatever the server says."""
        server, client = self._server, self._client
        if not client.mean < server.mean:
            return False
        return client.floor < server.floor or client.mean * MUCH < server.mean

    def _has_enough(self, now: float) -> bool:
        """Tell whether the server has answered nothing for a while, or has its share under way.

        Else a server that is held back for the rest of a period soon has all that are under way.
        """
        server, client = self._server, self._client
        if now - server.moved_at > server.mean + client.mean:
            return True
        under_way = server.outstanding + client.outstanding + 1
        return server.outstanding >= self.server_share * under_way

    def _keeps_all(self) -> bool:
        """Tell whether the server gets none of several requests, which it might have."""
        server, client = self._server, self._client
        if not server.outstanding + client.outstanding or not server.count or not client.count:
            return False
        if not client.next_s() < server.next_s() * PRICE:
            return False
        # What it takes now may be our own doing: a server that is not asked falls asleep.
        if not client.floor < server.floor * PRICE:
            return False
        self._offered = True
        return not self.lends

    def _may_have_one(self) -> bool:
        """Tell whether the server, which would get nothing, gets one of several requests."""
        server, client = self._server, self._client
        if server.outstanding or not client.outstanding or not server.count or not client.count:
            return False
        if not server.next_s() < client.next_s() * PRICE:
            return False
        self._offered = True
        return self.lends

    def _judge(self, now: float) -> None:
        """(At the end of a window) find out whether more gets done if the server has some of ours.

        A window without such a request tells nothing, and neither does one that has lasted for
        long, because nobody asked.
        """
        taken_s = now - self._window_at
        if self._offered and taken_s < self.interval_s * WINDOW * 2.0:
            rate, known = self._count / taken_s, self._rates[self.lends]
            self._rates[self.lends] = known + (rate - known) * 0.5 if known > 0.0 else rate
            self._choose_next()
        self._window_at = now
        self._count = 0
        self._offered = False

    def _choose_next(self) -> None:
        """Choose what the next window is for."""
        without, with_some = self._rates
        if not (without > 0.0 and with_some > 0.0):
            self.lends = not self.lends
            return
        better = with_some > without
        if better != self._better:
            self._better, self._tries = better, 0
        self._windows = self._windows + 1 if self.lends == better else 0
        least, most = (without, with_some) if better else (with_some, without)
        wait = max(TRIED_EACH, (1.0 - least / most) / self._explore)
        if self._windows < min(wait, TRIED_FIRST << self._tries):
            self.lends = better
        else:
            self.lends = not better
            self._tries = min(self._tries + 1, TRIES_MAX)

    def observe(
        self, path: Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        """Take note of what became of a request, or of some at once, which took so long each.

        What is not finite says that they came to nothing.  That they took longer than usual until
        then counts, and that they took less does not; what is negative is no latency.
        """
        if requests < 0:
            raise ValueError(f"requests={requests}: there are no fewer than 0")
        way = self._server if path is _SERVER else self._client
        load = float(max(1, way.outstanding)) if requests == 1 else 1.0
        way.outstanding = max(0, way.outstanding - requests)
        if 0.0 <= latency_s < _INFINITY:
            way.add(latency_s, now, self.interval_s * WINDOW)
            way.note(latency_s, now, OUTLIER, load)
            way.moved_at = now
        elif not latency_s < 0.0:
            waited_s = now - way.moved_at
            if way.mean < waited_s < _INFINITY and way.count:
                way.note(waited_s, now, _INFINITY, load)

    # ---- heartbeats ------------------------------------------------------------------------------

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        """Take one step, away from the server or back to it."""
        if sequence == self._sequence:
            return
        self._wake(now)
        self._sequence = sequence
        self._due = now + 2.0 * self.interval_s
        self._busy = busy_share > self.threshold
        if not self._busy:
            more = RETURN_MAX
            if busy_share * RETURN_MAX > self.threshold:
                more = self.threshold / busy_share
            self._return(more)
        elif self._pays():
            self.busy_rounds += 1
            away = (self.busy_rounds - 1 + self._random()) / self.n
            self.server_share = max(SHARE_MIN, self.server_share * (1.0 - min(away, 0.5)))
        else:
            self._return(RETURN_PAYS)

    def _pays(self) -> bool:
        server, client = self._server, self._client
        return not server.count or client.mean < server.takes_s() * PRICE

    def _return(self, factor: float) -> None:
        self.busy_rounds = 0
        more = self.server_share * factor
        share = more / (more + 1.0 - self.server_share)
        self.server_share = share if share <= SHARE_MAX else 1.0
