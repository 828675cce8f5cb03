"""`LatencyPolicy` in C does what its model in Python does: every choice, and every figure."""

import random
from math import log1p
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l5
from l5 import native
from l5._offload_model import LatencyModel

S, C = l5.Path.SERVER, l5.Path.CLIENT
pytestmark = pytest.mark.skipif(not native.available, reason=native.reason or "no C")

DEFAULTS: dict[str, Any] = {
    "window": 100,
    "outlier": 3.0,
    "explore": 0.01,
    "stale_s": 3.0,
    "reads": 5.0,
}

phases = st.lists(
    st.tuples(
        st.integers(1, 700),  # requests
        st.floats(1e-7, 1.0),  # the server's latency
        st.floats(1e-7, 1.0),  # the client's
        st.floats(0.0, 3.0),  # how much either varies
        st.integers(0, 9),  # reads
        st.sampled_from([1e-5, 1e-3, 0.7, 3.1]),  # between requests
        st.integers(0, 3),  # observations of a request
    ),
    min_size=1,
    max_size=5,
)
settings_of = st.fixed_dictionaries(
    {
        "window": st.integers(16, 200),
        "outlier": st.floats(1.01, 10.0),
        "explore": st.one_of(st.floats(0.001, 0.9), st.just(1e-300)),
        "stale_s": st.floats(0.5, 5.0),
        "reads": st.floats(1.0, 20.0),
    }
)


def state(policy: Any) -> tuple[Any, ...]:
    return policy.better, policy.reads, policy.round_trip_s


@settings(max_examples=60, deadline=None)
@given(phases, settings_of, st.integers(0, 2**32))
@example([(700, 1e-5, 1e-6, 0.0, 4, 1e-5, 1)] * 3, {"window": 16}, 1)
@example(  # what was an outlier becomes the truth
    [(700, 20e-6, 400e-6, 0.1, 1, 1e-5, 1), (700, 5e-3, 400e-6, 0.1, 1, 1e-5, 1)],
    {"window": 32, "explore": 0.1},
    2,
)
def test_traces_are_the_same(
    trace: list[tuple[int, float, float, float, int, float, int]],
    given: dict[str, Any],
    seed: int,
) -> None:
    full: dict[str, Any] = {
        "window": 100,
        "outlier": 3.0,
        "explore": 0.01,
        "stale_s": 3.0,
        "reads": 5.0,
    } | given
    fast = l5.LatencyPolicy(random=random.Random(seed).random, **full)
    model = LatencyModel(
        random.Random(seed).random,
        full["window"],
        full["outlier"],
        log1p(-full["explore"]),
        full["stale_s"],
        full["reads"],
    )
    assert isinstance(fast, native.Latencies)
    noise = random.Random(seed + 1)
    now = 0.0
    for count, server_s, client_s, varies, reads, step_s, times in trace:
        for _ in range(count):
            now += step_s
            path = model.choose(now)
            assert fast.choose(now) is path
            took = server_s if path is S else client_s
            for _ in range(times):
                took *= 1.0 + varies * noise.random() ** 8
                model.observe(path, took, now, reads)
                fast.observe(path, took, now, reads)
            assert state(fast) == state(model)


def test_arguments_by_name_and_wrong_ones() -> None:
    policy = l5.LatencyPolicy(random=lambda: 0.5)
    policy.choose(0.0)
    policy.observe(path=S, latency_s=1e-6, now=0.0)
    policy.observe(C, 1e-6, now=0.0, reads=2)
    policy.observe(C, 1e-6, 0.0)
    policy.heartbeat(busy_share=1.0, sequence=1, now=0.0)
    wrong: Any = policy
    for arguments, names in (
        ((S, 1e-6), {}),
        ((S, 1e-6, 0.0, 1, 1, 1), {}),
        ((S, 1e-6, 0.0), {"path": S}),
        ((S, 1e-6, 0.0), {"read": 1}),
        ((S, "long", 0.0), {}),
        ((C, 1e-6, 0.0, "some"), {}),
    ):
        with pytest.raises(TypeError):
            wrong.observe(*arguments, **names)
    with pytest.raises(TypeError):
        wrong.choose("now")


def test_errors_of_the_source_of_chance_are_passed_on() -> None:
    class Spent(Exception):
        pass

    draws = [0.5]

    def draw() -> float:
        if not draws:
            raise Spent
        return draws.pop()

    policy = l5.LatencyPolicy(random=draw, explore=0.5)
    with pytest.raises(Spent):
        for number in range(1000):
            path = policy.choose(number * 1e-3)
            policy.observe(path, 1e-6, number * 1e-3, 1)


def test_latencies_that_come_in_while_one_is_asked_for() -> None:
    """There is room for 16; asking for a number may run code that observes, or another thread."""
    policy = l5.LatencyPolicy()

    class Nested:
        def __init__(self, depth: int, path: l5.Path) -> None:
            self.depth, self.path = depth, path

        def __float__(self) -> float:
            if self.depth:
                wrong.observe(self.path, Nested(self.depth - 1, self.path), 0.0)
            return 1.5

    wrong: Any = policy
    policy.choose(0.0)
    for path in l5.Path:
        wrong.observe(path, Nested(200, path), 0.0)
    for _ in range(1000):
        policy.choose(0.0)
    assert policy.round_trip_s == 1.5 / 5.0
    assert policy.better in l5.Path


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), -1e-6])
def test_what_is_no_latency_is_not_looked_at(wrong: float) -> None:
    makers: list[Any] = [lambda: l5.LatencyPolicy(random=lambda: 0.5, **DEFAULTS)]
    makers.append(lambda: LatencyModel(lambda: 0.5, 100, 3.0, log1p(-0.01), 3.0, 5.0))
    for make in makers:
        policy, other = make(), make()
        for number in range(2000):
            path = policy.choose(number * 1e-5)
            assert other.choose(number * 1e-5) is path
            policy.observe(path, wrong, 0.0, 1)
            for each in (policy, other):
                each.observe(path, 2e-5 if path is S else 1e-6, 0.0, 1)
            policy.observe(path, wrong, 0.0, 1)
        assert state(policy) == state(other)
        assert policy.round_trip_s == 1e-6
        assert policy.better is C


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -3.0, 0.5])
def test_a_wrong_number_of_reads_says_nothing(wrong: float) -> None:
    makers: list[Any] = [lambda: l5.LatencyPolicy(random=lambda: 0.5, **DEFAULTS)]
    makers.append(lambda: LatencyModel(lambda: 0.5, 100, 3.0, log1p(-0.01), 3.0, 5.0))
    for make in makers:
        policy = make()
        for number in range(500):
            policy.observe(policy.choose(number * 1e-5), 1e-5, 0.0, wrong)
        assert policy.reads == 5.0


def test_after_an_error_of_chance_both_paths_are_still_tried() -> None:
    class Spent(Exception):
        pass

    draws = iter([0.5])

    def chance() -> float:
        if exhausted:
            raise Spent
        return next(draws, 0.5)

    exhausted = False
    policy = l5.LatencyPolicy(random=chance, explore=0.1)
    exhausted = True
    with pytest.raises(Spent):
        policy.choose(10.0)  # after so long a silence all is forgotten, and a gap is drawn
        policy.choose(20.0)
    exhausted = False
    taken = set[l5.Path]()
    for number in range(1000):
        path = policy.choose(20.0 + number * 1e-5)
        policy.observe(path, 1e-5, 0.0, 1)
        taken.add(path)
    assert taken == {S, C}
