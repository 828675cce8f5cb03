"""What a policy costs a request: choosing, and noting what it took.

There is no peer: the limit, 200 ns, stands in for one.
"""

import time
from collections.abc import Callable, Iterator

import l5
from benchmarks import _harness
from benchmarks._harness import Metric, Row

LIMIT_NS = 200.0
COST = Metric("cost_ns", "policy's time of a request", "ns")
POLICIES: dict[str, Callable[[], l5.OffloadPolicy]] = {
    "always server": l5.AlwaysServer,
    "adaptive": l5.AdaptivePolicy,
    "back-off": l5.BackoffPolicy,
    "back-off, as in the paper": l5.PaperBackoffPolicy,
    "by latency": l5.LatencyPolicy,
}
STEP_S = 1e-5


def run(quick: bool, rounds: int = _harness.ROUNDS) -> Iterator[Row]:
    """Measure each policy, the best of some runs in each round."""
    count = 2_000 if quick else 100_000
    for name, make in POLICIES.items():
        costs = [min(cost_ns(make(), count) for _ in range(5)) for _ in range(rounds)]
        pairs = [(cost, LIMIT_NS) for cost in costs]
        yield _harness.row(f"policies/{name}", None, COST, "what is allowed", pairs)


def cost_ns(policy: l5.OffloadPolicy, count: int) -> float:
    """Return what `choose` and `observe` take together, with a heartbeat every 10 ms."""
    choose, observe = policy.choose, policy.observe
    now, before = 0.0, time.perf_counter_ns()
    for number in range(count):
        if number % 1000 == 0:
            policy.heartbeat(0.97, number, now)
        path = choose(now)
        now += STEP_S
        observe(path, STEP_S, now, 4)
    taken = time.perf_counter_ns() - before
    now, before = 0.0, time.perf_counter_ns()
    for number in range(count):
        if number % 1000 == 0:
            pass
        now += STEP_S
    return (taken - (time.perf_counter_ns() - before)) / count
