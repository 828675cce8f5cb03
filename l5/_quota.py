"""How much of its CPU quota this process uses, which is how busy a server is that has one.

A quota is used in bursts, and who has used it up is held back until the period is over.  So it is
measured over the kernel's usual period: processor time over what the quota gave; and the whole,
when the process (any of its group) was held back in half of the periods: what a group's threads
leave unused on one processor is lost to those on another.  Native services do the same in C
(`native/busy.h`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, process_time_ns

import attrs

from ._cpu import smallest_quota

NARROW_BELOW = 2.0
"""Processors.  With more, a loop or a worker is full before the quota is."""
WINDOW_NS = 100_000_000
LOOK_NS = 1_000_000_000


@attrs.frozen
class Quota:
    """A quota of the group that this process is in."""

    processors: float
    stat: Path
    """Where the kernel counts the periods, and those in which the group was held back."""

    def periods(self) -> tuple[int, int]:
        """Return how many periods there were, and in how many of them it was held back."""
        try:
            rows = [line.split() for line in self.stat.read_text().splitlines()]
            counts = {row[0]: int(row[1]) for row in rows if len(row) == 2}
        except (OSError, ValueError):
            return 0, 0
        return counts.get("nr_periods", 0), counts.get("nr_throttled", 0)


def narrow_quota() -> Quota | None:
    """Return the quota of this process, if it is one that a loop or a worker can use up."""
    found = smallest_quota()
    if found is None or found[0] >= NARROW_BELOW:
        return None
    return Quota(found[0], found[1] / "cpu.stat")


class CurrentQuota:
    """The quota, at most a second old: one may be given or taken at any time."""

    def __init__(
        self,
        look: Callable[[], Quota | None] = narrow_quota,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._look, self._now_ns = look, now_ns
        self._looked_ns = now_ns() - LOOK_NS
        self._found: Quota | None = None

    def get(self) -> Quota | None:
        """Return it; None: there is none."""
        now = self._now_ns()
        if now - self._looked_ns >= LOOK_NS:
            self._looked_ns = now
            self._found = self._look()
        return self._found


class QuotaShare:
    """The share of its quota that this process uses."""

    def __init__(
        self,
        look: Callable[[], Quota | None] = narrow_quota,
        used_ns: Callable[[], int] = process_time_ns,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._used_ns, self._now_ns = used_ns, now_ns
        self._quota = CurrentQuota(look, now_ns)
        self._then = (now_ns(), used_ns(), 0, 0)
        self._share = 0.0

    def share(self) -> float:
        """Return the share in the last full window, from 0 to 1; 0 without a quota."""
        quota = self._quota.get()
        now = self._now_ns()
        if quota is None:
            self._then = now, self._used_ns(), 0, 0
            return 0.0
        begun, used_before, periods_before, held_before = self._then
        if now - begun >= WINDOW_NS:
            used, (periods, held) = self._used_ns(), quota.periods()
            self._share = min(1.0, (used - used_before) / ((now - begun) * quota.processors))
            if periods_before and 2 * (held - held_before) >= periods - periods_before > 0:
                self._share = 1.0
            self._then = now, used, periods, held
        return self._share
