"""A case: which sides are compared, by which metrics, and beside what; measured in one place."""

import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import attrs

from benchmarks import _report
from benchmarks._harness import Metric, Row, Sample, Watch, compare, take_turns
from benchmarks._quota import NoQuota
from benchmarks.messaging_peers.pair import Pair, Spec, WorkerFailed

RATE = Metric("rate", "round trips", "1/s")
P50 = Metric("p50_us", "p50", "us")
P99 = Metric("p99_us", "p99", "us")
P999 = Metric("p99.9_us", "p99.9", "us")
CPU_OF_REQUESTS = Metric("cpu_s_per_million", "processor time of a million", "s")
MESSAGES = Metric("rate", "messages", "1/s")
BANDWIDTH = Metric("rate", "bandwidth", "B/s")
FAIRNESS = Metric("fairness", "slowest over mean client", "1")
CPU = Metric("cpu_percent", "processor time", "%")
WAKE_UPS = Metric("wake_ups", "wake-ups", "1/s")


@attrs.frozen
class Size:
    """How much of everything."""

    rounds: int
    repeats: int
    seconds: float
    clients: tuple[int, ...]
    clients_of_peers: tuple[int, ...]
    hot_bytes: int
    cold_bytes: int


@attrs.frozen
class Peer:
    spec: Spec
    goal: str | None = None
    foreign: bool = False
    """Left out, with its last words, when it cannot be started."""


@attrs.frozen
class Limit:
    """A side that is not measured: it is what the goal allows."""

    name: str
    goal: str
    allowed: Mapping[str, float]

    def measure(self) -> Sample:
        return self.allowed

    def pids(self) -> list[int]:
        return []


@attrs.frozen
class Case:
    name: str
    ours: Spec
    peers: Sequence[Peer]
    metrics: Sequence[Metric] = (RATE,)
    hogs: int = 0
    """Processes beside it that only compute."""
    limit: "Limit | None" = None
    """Stands in for a peer where the goal is a number."""


def left_out(what: str, reason: str) -> None:
    print(f"messaging: {what} left out: {reason}", file=sys.stderr)


def measure(case: Case, size: Size, folder: str) -> list[Row]:
    """Start all sides of a case, let them take turns, and end them."""
    if case.ours.missing:
        left_out(case.name, f"{', '.join(case.ours.missing)} is not installed")
        return []
    peers = installed(case)
    limits = [case.limit] if case.limit else []
    if not peers and not limits:
        return []
    _report.begin(case.name, size.rounds * (1 + len(peers) + len(limits)))
    with ExitStack() as stack:
        hogs = [stack.enter_context(hog()) for _ in range(case.hogs)]
        try:
            pairs = start(case, peers, size, folder, stack)
        except NoQuota as reason:
            left_out(case.name, str(reason))
            return []
        done = take_turns(
            [*pairs, *limits],
            size.rounds,
            repeats=size.repeats,
            watch=lambda: Watch(lambda: [*hogs, *(pid for pair in pairs for pid in pair.pids())]),
            on_measured=_report.advance,
        )
    goals = [peer.goal for peer in (*peers, *limits)]
    names = [side.name for side in (*(peer.spec for peer in peers), *limits)]
    return compare(case.name, goals, case.metrics, names, done)


def installed(case: Case) -> list[Peer]:
    """Return the peers that are; the others are named on standard error."""
    peers: list[Peer] = []
    for peer in case.peers:
        if peer.spec.missing:
            left_out(f"{case.name}, {peer.spec.name}", f"no {', '.join(peer.spec.missing)}")
        else:
            peers.append(peer)
    return peers


def start(case: Case, peers: list[Peer], size: Size, folder: str, stack: ExitStack) -> list[Pair]:
    """Start all sides at once, ours first in the list; who cannot be goes from `peers`."""
    sides = [Peer(case.ours), *peers]
    pairs = [Pair(side.spec, folder, size.seconds) for side in sides]
    with ThreadPoolExecutor(len(pairs)) as pool:
        started = [pool.submit(pair.__enter__) for pair in pairs]
    running: list[Pair] = []
    failed: list[BaseException] = []
    for side, pair, result in zip(sides, pairs, started, strict=True):
        failure = result.exception()
        if failure is None:
            stack.push(pair)
            running.append(pair)
        elif isinstance(failure, WorkerFailed) and side.foreign:
            left_out(f"{case.name}, {side.spec.name}", str(failure))
            peers.remove(side)
        else:
            failed.append(failure)
    if failed:
        raise failed[0]
    return running


@contextmanager
def hog() -> Generator[int]:
    """Keep one processor busy, with a process that wants nothing else."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
