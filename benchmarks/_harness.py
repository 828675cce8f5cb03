"""How two or more sides are compared: in turn, in one run, and with an eye on who else computes.

    round 1   ours  peer A  peer B        a round during which somebody else used the processors is
    round 2   peer A  peer B  ours        done again, at most REPEATS times; the last try counts,
    round 3   peer B  ours  peer A        and the table says how many rounds stayed disturbed

Every ratio is ours over the peer's within one round, so that what the machine does from one minute
to the next stays out of it.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

Row = dict[str, Any]
"""One line of the results, with `KEYS`; a table may show the key "disturbed", JSON does not."""

KEYS = ("case", "goal", "metric", "unit", "ours", "peer", "peer_value", "ratio", "n")
ROUNDS = 5
REPEATS = 2
FOREIGN_CORES_MAX = 0.15

Sample = Mapping[str, float]
"""What one measurement found, by the name of the metric."""


class Side(Protocol):
    """One of the systems that are compared, ready to be measured any number of times."""

    @property
    def name(self) -> str: ...
    def measure(self) -> Sample: ...
    def pids(self) -> Iterable[int]: ...


@attrs.frozen
class Round:
    samples: tuple[Sample, ...]
    """One for each side, in the order of the sides."""
    foreign_cores: float | None
    """What others used of the processors meanwhile; None where that cannot be told."""

    @property
    def disturbed(self) -> bool:
        return self.foreign_cores is not None and self.foreign_cores > FOREIGN_CORES_MAX


@attrs.frozen
class Metric:
    key: str
    """Of `Sample`."""
    name: str
    unit: str


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the smallest, the median and the largest."""
    return {
        "min": rounded(min(values)),
        "median": rounded(statistics.median(values)),
        "max": rounded(max(values)),
    }


def ratio(ours: float, theirs: float) -> float:
    """Divide, where either may be nothing at all: an idle side need not use any processor time."""
    return 1.0 if ours == theirs else ours / max(theirs, 1e-9)


def rounded(value: float) -> float:
    """Round to what a measurement is good for: four digits, or a whole number above that."""
    return float(f"{value:.4g}") if abs(value) < 1000 else float(round(value))


def row(
    case: str,
    goal: str | None,
    metric: Metric,
    peer: str,
    pairs: Sequence[tuple[float, float]],
    disturbed: int = 0,
) -> Row:
    """Make a row of (ours, peer's) pairs, one a round."""
    return {
        "case": case,
        "goal": goal,
        "metric": metric.name,
        "unit": metric.unit,
        "ours": spread([ours for ours, _ in pairs]),
        "peer": peer,
        "peer_value": spread([theirs for _, theirs in pairs]),
        "ratio": spread([ratio(ours, theirs) for ours, theirs in pairs]),
        "n": len(pairs),
        "disturbed": disturbed,
    }


def take_turns(
    sides: Sequence[Side],
    rounds: int,
    *,
    repeats: int = REPEATS,
    watch: "Callable[[], Watch] | None" = None,
    on_measured: Callable[[], None] = lambda: None,
) -> list[Round]:
    """Measure every side once a round; who begins changes from round to round."""
    make_watch = watch or (lambda: Watch(lambda: [pid for side in sides for pid in side.pids()]))
    done: list[Round] = []
    for number in range(rounds):
        result = one_round(sides, number, make_watch(), on_measured)
        for _ in range(repeats):
            if not result.disturbed:
                break
            result = one_round(sides, number, make_watch(), on_measured)
        done.append(result)
    return done


def one_round(
    sides: Sequence[Side], number: int, watch: "Watch", on_measured: Callable[[], None]
) -> Round:
    first = number % len(sides)
    samples: dict[int, Sample] = {}
    for which in (*range(first, len(sides)), *range(first)):
        samples[which] = sides[which].measure()
        on_measured()
    return Round(tuple(samples[which] for which in range(len(sides))), watch.foreign_cores())


def compare(
    case: str,
    goals: Sequence[str | None],
    metrics: Sequence[Metric],
    peers: Sequence[str],
    rounds: Sequence[Round],
) -> list[Row]:
    """Make rows: sides[0] of the rounds against each other one, by each metric.

    `goals` are the peers' goals.  A metric that a side does not have is left out.
    """
    disturbed = sum(one.disturbed for one in rounds)
    rows: list[Row] = []
    for which, (peer, goal) in enumerate(zip(peers, goals, strict=True), 1):
        for metric in metrics:
            if all(metric.key in one.samples[side] for one in rounds for side in (0, which)):
                pairs = [
                    (one.samples[0][metric.key], one.samples[which][metric.key]) for one in rounds
                ]
                rows.append(row(case, goal, metric, peer, pairs, disturbed))
    return rows


# ---- who else computes ----

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def busy_ticks(proc_stat: str) -> int:
    """Return the ticks that all processors worked, from the text of /proc/stat.

    Neither idle nor waiting, nor taken by the hypervisor; what guests get is part of user already.
    """
    user, nice, system, _idle, _iowait, irq, softirq = map(int, proc_stat.split()[1:8])
    return user + nice + system + irq + softirq


def process_ticks(proc_pid_stat: str) -> int:
    """Return the ticks that a process worked, from the text of /proc/PID/stat."""
    fields = proc_pid_stat.rpartition(")")[2].split()  # the name may hold anything
    return int(fields[11]) + int(fields[12])


class Watch:
    """From when it is made: how much of the processors others than we and our children use."""

    def __init__(self, pids: Callable[[], Iterable[int]], proc: Path = Path("/proc")) -> None:
        self._pids = pids
        self._proc = proc
        self._start_s = time.monotonic()
        self._start = self._ticks()

    def _ticks(self) -> tuple[int, int] | None:
        try:
            busy = busy_ticks((self._proc / "stat").read_text())
            return busy, sum(map(self._process, {os.getpid(), *self._pids()}))
        except (OSError, ValueError):
            return None

    def _process(self, pid: int) -> int:
        return process_ticks((self._proc / str(pid) / "stat").read_text())

    def foreign_cores(self) -> float | None:
        """Return the mean number of processors that others kept busy; None if it is unknown."""
        now, seconds = self._ticks(), time.monotonic() - self._start_s
        if now is None or self._start is None or seconds <= 0:
            return None
        foreign = (now[0] - self._start[0]) - (now[1] - self._start[1])
        return max(0.0, foreign / TICKS_PER_S / seconds)
