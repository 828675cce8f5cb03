"""A server, its link and its clients: closed loops, a policy each, and heartbeats every 10 ms.

    server path   request -> (latency) -> cores, first come first served -> link -> client
    client path   for each level: read its nodes -> link -> look at them

The server's link carries all answers and all reads: what is read by one client another one waits
for.  An insert goes to the server, always; there one writer at a time is in the tree, and a worker
that waits for its turn is busy.
"""

import heapq
import random
from collections.abc import Callable

import attrs

import l5
from benchmarks.simulator.clock import Clock
from benchmarks.simulator.costs import NODE_BYTES, REQUEST_BYTES, Costs
from benchmarks.simulator.link import LinkSpec, Pipe

HEARTBEAT_S = 0.010
HEARTBEAT_BYTES = 64

MakePolicy = Callable[[random.Random], l5.OffloadPolicy]


@attrs.frozen
class Method:
    """A way to ask."""

    name: str
    link: LinkSpec
    policy: MakePolicy
    kernel: bool = False
    """Messages go through the kernels of both ends."""
    polls: bool = False
    """The server has a polling thread for each connection, more than it has cores."""
    multi_issue: bool = True
    """The nodes of a level are read at once, and not one by one."""


@attrs.frozen
class Setting:
    """What all methods are compared in."""

    costs: Costs
    cores: int
    clients: int
    insert_share: float = 0.0
    writer_share: float = 0.1
    """Part of an insert during which no other is in the tree."""
    think_s: float = 0.5e-6
    seconds: float = 0.4
    warm_up_s: float = 0.2
    seed: int = 1


@attrs.frozen
class Result:
    """What all clients saw after the warm-up."""

    rate: float
    mean_s: float
    p99_s: float
    busy_share: float
    link_share: float
    offloaded: float
    """The part of the searches that clients did themselves."""


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


class Cluster:
    """One run."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.method, self.setting = method, setting
        self.clock = Clock()
        self.out = Pipe(method.link)
        self.cores = Cores(setting.cores, HEARTBEAT_S)
        self.lock = Lock()
        chance = random.Random(setting.seed)
        self.clients = [
            Client(self, random.Random(chance.random())) for _ in range(setting.clients)
        ]
        self.busy: list[float] = []
        costs = setting.costs
        # More polling threads than cores: see `threads`, which finds about this factor.
        crowd = max(1.0, setting.clients / setting.cores) if method.polls else 1.0
        message_s = costs.message_s + (2 * costs.kernel_s if method.kernel else 0.0)
        self.search_s = (costs.search_s + message_s) * crowd
        self.insert_s = (costs.insert_s + message_s) * crowd
        self.rounds = self._rounds(costs)

    def _rounds(self, costs: Costs) -> list[float]:
        """Return how many nodes each round of reads brings."""
        if self.method.multi_issue:
            return [nodes for nodes in costs.nodes if nodes]
        total = sum(costs.nodes)
        whole = int(total)
        return [1.0] * whole + ([total - whole] if total > whole else [])

    def run(self) -> Result:
        setting, clock = self.setting, self.clock
        for number, client in enumerate(self.clients):
            clock.at(number * 1e-6, client.next)
        clock.at(HEARTBEAT_S, self._beat, 1)
        clock.run(setting.warm_up_s)
        bytes_before = self.out.bytes_sent
        for client in self.clients:
            client.begin_to_count()
        self.busy.clear()
        clock.run(setting.seconds)
        load = self.out.load(setting.warm_up_s, bytes_before, clock.now)
        return self._result(load)

    def _result(self, link_share: float) -> Result:
        latencies = sorted(taken for client in self.clients for taken in client.latencies)
        count = len(latencies)
        if not count:
            raise RuntimeError(
                f"{self.method.name}: nothing was done in the time that was simulated"
            )
        searches = sum(client.searches for client in self.clients)
        return Result(
            rate=count / (self.setting.seconds - self.setting.warm_up_s),
            mean_s=sum(latencies) / count,
            p99_s=latencies[int(0.99 * (count - 1))],
            busy_share=sum(self.busy) / max(1, len(self.busy)),
            link_share=link_share,
            offloaded=sum(client.offloaded for client in self.clients) / max(1, searches),
        )

    def _beat(self, sequence: int) -> None:
        share = self.cores.busy_share(sequence - 1)
        self.busy.append(share)
        if share > 0.0:  # who sleeps says nothing
            for client in self.clients:
                arrives = self.out.send(HEARTBEAT_BYTES, self.clock.now)
                self.clock.at(arrives, client.hear, share, sequence)
        self.clock.at((sequence + 1) * HEARTBEAT_S, self._beat, sequence + 1)


class Client:
    """One closed loop."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.policy = cluster.method.policy(chance)
        self.chance = chance.random
        self.latencies: list[float] = []
        self.searches = self.offloaded = 0
        self._began = 0.0

    def begin_to_count(self) -> None:
        self.latencies.clear()
        self.searches = self.offloaded = 0

    def hear(self, busy_share: float, sequence: int) -> None:
        self.policy.heartbeat(busy_share, sequence, self.cluster.clock.now)

    def next(self) -> None:
        """Make the next request."""
        cluster = self.cluster
        now = self._began = cluster.clock.now
        setting, latency_s = cluster.setting, cluster.method.link.latency_s
        if setting.insert_share and self.chance() < setting.insert_share:
            held_s = setting.writer_share * setting.costs.insert_s
            end = cluster.cores.take(now + latency_s, cluster.insert_s, cluster.lock, held_s)
            cluster.clock.at(end, self._answered, REQUEST_BYTES, None)
            return
        path = self.policy.choose(now)
        self.searches += 1
        if path is l5.Path.SERVER:
            end = cluster.cores.take(now + latency_s, cluster.search_s)
            cluster.clock.at(end, self._answered, setting.costs.reply_bytes, path)
        else:
            self.offloaded += 1
            self._read(0)

    def _answered(self, size_bytes: int, path: l5.Path | None) -> None:
        arrives = self.cluster.out.send(size_bytes, self.cluster.clock.now)
        self.cluster.clock.at(arrives, self._done, path, 0)

    def _read(self, round_number: int) -> None:
        """Read the nodes of a level: their number is the mean, and chance for the rest of it."""
        cluster = self.cluster
        mean = cluster.rounds[round_number]
        nodes = int(mean) + (self.chance() < mean - int(mean))
        now = cluster.clock.now
        if nodes:
            asked = now + cluster.method.link.latency_s
            now = cluster.out.send(nodes * NODE_BYTES, asked, verbs=nodes)
        ready = now + nodes * cluster.setting.costs.node_s
        last = round_number + 1 == len(cluster.rounds)
        if last:
            cluster.clock.at(ready, self._done, l5.Path.CLIENT, len(cluster.rounds))
        else:
            cluster.clock.at(ready, self._read, round_number + 1)

    def _done(self, path: l5.Path | None, reads: int) -> None:
        clock = self.cluster.clock
        taken = clock.now - self._began
        self.latencies.append(taken)
        if path is not None:
            self.policy.observe(path, taken, clock.now, reads)
        clock.at(clock.now + self.cluster.setting.think_s, self.next)


def simulate(method: Method, setting: Setting) -> Result:
    """Run a method in a setting."""
    return Cluster(method, setting).run()
