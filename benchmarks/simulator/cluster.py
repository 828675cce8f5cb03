"""A server, its link and its clients: closed loops, a policy each, and heartbeats every 10 ms.

    server path   request -> (latency) -> cores, first come first served -> link -> client
    client path   for each level: read its nodes -> link -> look at them

The server's link carries all answers and all reads: what is read by one client another one waits
for.  An insert goes to the server, always; there one writer at a time is in the tree, and a worker
that waits for its turn is busy.

A client is one loop, or some (`at_once`) that share a policy and a processor, which asking takes
`request_s` of and each round of reads `round_s`.
"""

import random
from collections.abc import Callable

import attrs

import l5
from benchmarks.simulator.clock import Clock
from benchmarks.simulator.cores import Cores, Limited, Lock
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
    at_once: int = 1
    request_s: float = 0.0
    round_s: float = 0.0
    quota: float = 0.0
    """What the server may use of one processor, in each interval of heartbeats; 0: all `cores`."""
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


class Cluster:
    """One run."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.method, self.setting = method, setting
        self.clock = Clock()
        self.out = Pipe(method.link)
        self.cores = (
            Limited(setting.quota, HEARTBEAT_S)
            if setting.quota
            else Cores(setting.cores, HEARTBEAT_S)
        )
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
            for task in client.tasks:
                clock.at(number * 1e-6, task.next)
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
    """Closed loops that share a policy and a processor."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.policy = cluster.method.policy(chance)
        self.chance = chance.random
        self.core = Cores(1, HEARTBEAT_S)
        self.latencies: list[float] = []
        self.searches = self.offloaded = 0
        self.tasks = [Task(self) for _ in range(cluster.setting.at_once)]

    def begin_to_count(self) -> None:
        self.latencies.clear()
        self.searches = self.offloaded = 0

    def hear(self, busy_share: float, sequence: int) -> None:
        self.policy.heartbeat(busy_share, sequence, self.cluster.clock.now)

    def works(self, work_s: float) -> float:
        """Return when the client's processor has done this."""
        now = self.cluster.clock.now
        return self.core.take(now, work_s) if work_s else now


class Task:
    """One closed loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cluster = client.cluster
        self._began = 0.0

    def next(self) -> None:
        """Make the next request."""
        cluster, client = self.cluster, self.client
        now = self._began = cluster.clock.now
        setting = cluster.setting
        if setting.insert_share and client.chance() < setting.insert_share:
            cluster.clock.at(client.works(setting.request_s / 2), self._ask, None)
            return
        path = client.policy.choose(now)
        client.searches += 1
        if path is l5.Path.SERVER:
            cluster.clock.at(client.works(setting.request_s / 2), self._ask, path)
        else:
            client.offloaded += 1
            self._read(0)

    def _ask(self, path: l5.Path | None) -> None:
        cluster = self.cluster
        setting, arrives = cluster.setting, cluster.clock.now + cluster.method.link.latency_s
        if path is None:
            held_s = setting.writer_share * setting.costs.insert_s
            end = cluster.cores.take(arrives, cluster.insert_s, cluster.lock, held_s)
            cluster.clock.at(end, self._answered, REQUEST_BYTES, None)
        else:
            end = cluster.cores.take(arrives, cluster.search_s)
            cluster.clock.at(end, self._answered, setting.costs.reply_bytes, path)

    def _answered(self, size_bytes: int, path: l5.Path | None) -> None:
        arrives = self.cluster.out.send(size_bytes, self.cluster.clock.now)
        self.cluster.clock.at(arrives, self._noticed, path)

    def _noticed(self, path: l5.Path | None) -> None:
        heard = self.client.works(self.cluster.setting.request_s / 2)
        self.cluster.clock.at(heard, self._done, path, 0)

    def _read(self, round_number: int) -> None:
        """Read the nodes of a level: their number is the mean, and chance for the rest of it."""
        cluster = self.cluster
        mean = cluster.rounds[round_number]
        nodes = int(mean) + (self.client.chance() < mean - int(mean))
        now = cluster.clock.now
        if nodes:
            asked = now + cluster.method.link.latency_s
            now = cluster.out.send(nodes * NODE_BYTES, asked, verbs=nodes)
        cluster.clock.at(now, self._look, round_number, nodes)

    def _look(self, round_number: int, nodes: int) -> None:
        cluster, setting = self.cluster, self.cluster.setting
        looks_s = nodes * setting.costs.node_s
        # A processor is shared only where asking takes some of it as well.
        ready = (
            self.client.works(setting.round_s + looks_s)
            if setting.round_s
            else cluster.clock.now + looks_s
        )
        if round_number + 1 == len(cluster.rounds):
            cluster.clock.at(ready, self._done, l5.Path.CLIENT, len(cluster.rounds))
        else:
            cluster.clock.at(ready, self._read, round_number + 1)

    def _done(self, path: l5.Path | None, reads: int) -> None:
        clock, client = self.cluster.clock, self.client
        taken = clock.now - self._began
        client.latencies.append(taken)
        if path is not None:
            client.policy.observe(path, taken, clock.now, reads)
        clock.at(clock.now + self.cluster.setting.think_s, self.next)


def simulate(method: Method, setting: Setting) -> Result:
    """Run a method in a setting."""
    return Cluster(method, setting).run()
