"""Threads that poll or sleep, at both ends, and cores that all of them have to share.

A closed loop of n pairs: a client's thread asks, its server's thread answers.  A thread that polls
is always runnable, and the scheduler gives slices to any of them: a pair gets on while both of its
threads happen to run.  With n pairs on a fixed number of cores that is a share of the time which
falls with the square of n, for each of n pairs: what all get done falls with n, and what one waits
grows with its square.  A thread that sleeps takes a core only when there is something to do; waking
it costs `wake_s`, and what one waits grows with n.
"""

import random

import attrs

from benchmarks.simulator.clock import Clock

SLICE_S = 0.003
SWITCH_S = 2e-6


@attrs.frozen
class Crowd:
    """What is simulated."""

    clients: int
    cores: int
    work_s: float
    polls: bool
    wake_s: float = 5e-6
    way_s: float = 2e-6
    """From one end to the other."""
    client_s: float = 1e-6
    seconds: float = 1.0
    seed: int = 1


class Thread:
    """One end of a pair."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.peer: Thread = self
        self.left_s: float = 0.0
        """Work that it has; 0: nothing came."""
        self.core: int | None = None
        self.queued = False
        self.epoch: int = 0
        """Grows when what was foreseen for it does not hold any more."""
        self.resumed_at: float = 0.0
        self.asked_at: float = 0.0
        self.is_client = False


class Scheduler:
    """All cores and threads of a run."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.clock = Clock()
        self.ready: list[Thread] = []
        self.chance = random.Random(crowd.seed).random
        self.idle = list(range(crowd.cores))
        self.latencies: list[float] = []
        for _ in range(crowd.clients):
            client, server = Thread(crowd.client_s), Thread(crowd.work_s)
            client.peer, server.peer = server, client
            client.is_client = True
            client.left_s = crowd.client_s
            for thread in (client, server) if crowd.polls else (client,):
                self._make_ready(thread)

    def run(self) -> list[float]:
        """Return what the requests of the second half took."""
        half = self.crowd.seconds / 2
        self.clock.run(half)
        self.latencies.clear()
        self.clock.run(2 * half)
        return self.latencies

    def _make_ready(self, thread: Thread) -> None:
        thread.queued = True
        self.ready.append(thread)
        if self.idle:
            self._dispatch(self.idle.pop())

    def _dispatch(self, core: int) -> None:
        if not self.ready:
            self.idle.append(core)
            return
        # Any of them: in a strict turn the same pairs would meet for ever, or never.
        place = int(self.chance() * len(self.ready))
        self.ready[place], self.ready[-1] = self.ready[-1], self.ready[place]
        thread = self.ready.pop()
        thread.queued = False
        thread.core = core
        thread.epoch += 1
        begin = self.clock.now + SWITCH_S
        thread.resumed_at = begin
        self.clock.at(begin + SLICE_S, self._slice_over, thread, thread.epoch)
        if thread.left_s:
            self.clock.at(begin + thread.left_s, self._worked, thread, thread.epoch)

    def _slice_over(self, thread: Thread, epoch: int) -> None:
        if thread.core is None or thread.epoch != epoch:
            return
        if thread.left_s:
            thread.left_s = max(thread.left_s - (self.clock.now - thread.resumed_at), 1e-9)
        core, thread.core = thread.core, None
        thread.epoch += 1
        self.ready.append(thread)
        thread.queued = True
        self._dispatch(core)

    def _worked(self, thread: Thread, epoch: int) -> None:
        if thread.core is None or thread.epoch != epoch or not thread.left_s:
            return
        thread.left_s = 0.0
        now = self.clock.now
        if thread.is_client:
            if thread.asked_at:
                self.latencies.append(now - thread.asked_at)
            thread.asked_at = now
        self.clock.at(now + self.crowd.way_s, self._arrive, thread.peer)
        if not self.crowd.polls:
            core, thread.core = thread.core, None
            thread.epoch += 1
            self._dispatch(core)

    def _arrive(self, thread: Thread) -> None:
        thread.left_s = thread.cost_s + (0.0 if self.crowd.polls else self.crowd.wake_s)
        if thread.core is not None:
            thread.resumed_at = self.clock.now
            self.clock.at(self.clock.now + thread.left_s, self._worked, thread, thread.epoch)
        elif not thread.queued:
            self._make_ready(thread)


def mean_latency_s(crowd: Crowd) -> float:
    """Return what a request takes; infinite if none was answered in the time."""
    found = Scheduler(crowd).run()
    return sum(found) / len(found) if found else float("inf")
