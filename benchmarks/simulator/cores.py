"""What serves in the order of arrival: processors, processors with a quota, and a lock."""

import heapq


class Cores:
    """Workers that take what came first; they know how busy they are."""

    def __init__(self, count: int, window_s: float) -> None:
        self._free = [0.0] * count
        self._window_s = window_s
        self._busy: dict[int, float] = {}

    def take(
        self, at: float, work_s: float, lock: "Lock | None" = None, held_s: float = 0.0
    ) -> float:
        """Return when work that came at `at` is done."""
        begin = max(heapq.heappop(self._free), at)
        end = begin + work_s
        if lock is not None:
            end += lock.wait(begin, held_s)
        heapq.heappush(self._free, end)
        self._note(begin, end)
        return end

    def _note(self, begin: float, end: float) -> None:
        while begin < end:
            window = int(begin / self._window_s + 1e-9)
            upto = min(end, (window + 1) * self._window_s)
            if upto <= begin:
                upto = end
            self._busy[window] = self._busy.get(window, 0.0) + upto - begin
            begin = upto

    def busy_share(self, window: int) -> float:
        """Return how busy they were in a window, all together."""
        return min(1.0, self._busy.pop(window, 0.0) / (self._window_s * len(self._free)))


class Lock:
    """One at a time."""

    def __init__(self) -> None:
        self._free = 0.0

    def wait(self, at: float, held_s: float) -> float:
        """Take it for a while; return how long that had to wait."""
        begin = max(self._free, at)
        self._free = begin + held_s
        return begin - at


class Limited(Cores):
    """One worker that gets a part of a processor: so much in each period, and then has to wait.

    How busy it is it finds as `l5/native/busy.h` does: over ten periods, what it used of what it
    was given, and all of it if it was held back in half of them.
    """

    PERIODS = 10

    def __init__(self, quota: float, period_s: float) -> None:
        super().__init__(1, period_s)
        self._given_s = quota * period_s
        self._period, self._used_s = 0, 0.0
        self._used: dict[int, float] = {}
        self._share = 0.0

    def take(
        self, at: float, work_s: float, lock: "Lock | None" = None, held_s: float = 0.0
    ) -> float:
        """Return when work that came at `at` is done; who waits for a lock sleeps."""
        now = max(heapq.heappop(self._free), at)
        if lock is not None:
            now += lock.wait(now, held_s)
        while work_s > 0.0:
            period = int(now / self._window_s + 1e-9)
            if period != self._period:
                self._period, self._used_s = period, 0.0
            done = min(work_s, self._given_s - self._used_s, (period + 1) * self._window_s - now)
            if done > 1e-12:
                self._used_s += done
                self._used[period] = self._used_s
                now += done
                work_s -= done
                if work_s <= 1e-12:
                    break
            if self._used_s + 1e-12 >= self._given_s or done <= 1e-12:
                now = (period + 1) * self._window_s
        heapq.heappush(self._free, now)
        return now

    def busy_share(self, window: int) -> float:
        """Return what was found in the last full ten periods before the end of this one."""
        if (window + 1) % self.PERIODS == 0:
            used = [self._used.pop(window - n, 0.0) / self._given_s for n in range(self.PERIODS)]
            held = sum(share > 1.0 - 1e-6 for share in used)
            self._share = 1.0 if 2 * held >= self.PERIODS else sum(used) / self.PERIODS
        return self._share
