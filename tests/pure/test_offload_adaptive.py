"""The policy that adaptive clients have: traces computed by hand, and C against the model."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l5
from l5 import native
from l5._adaptive_model import AdaptiveModel

S, C = l5.Path.SERVER, l5.Path.CLIENT
GIVEN = (8, 0.95, 0.01, 0.01, 3.0)


def half() -> float:
    return 0.5


def model(chance: Callable[[], float] = half) -> Any:
    return AdaptiveModel(chance, *GIVEN)


def fast(chance: Callable[[], float] = half) -> Any:
    return l5.AdaptivePolicy(random=chance)


@pytest.fixture(params=[model, fast])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param


def asked(
    policy: Any, count: int, server_s: float, client_s: float, start: float, step_s: float = 1e-4
) -> str:
    """Make requests one after the other; S and C, in order."""
    chosen = ""
    for number in range(count):
        now = start + number * step_s
        path = policy.choose(now)
        chosen += "S" if path is S else "C"
        policy.observe(path, server_s if path is S else client_s, now)
    return chosen


def busy(policy: Any, beats: int, now: float, *, share: float = 1.0, first: int = 1000) -> None:
    for number in range(beats):
        policy.heartbeat(share, first + number, now)


# ---- which way is shorter


def test_the_clients_way_is_tried_after_64_requests(make: Any) -> None:
    assert asked(make(), 66, 1e-5, 1e-4, 0.0) == "S" * 64 + "CS"


def test_a_shorter_way_is_taken_whatever_the_server_says(make: Any) -> None:
    """Found at the 65th request; the server is tried each 30 ms, which costs 1 % of the time."""
    policy = make()
    chosen = asked(policy, 965, 3e-4, 1e-6, 0.0)
    assert chosen[:64] == "S" * 64 and chosen[64:].count("S") == 2
    busy(policy, 1, 0.1, share=0.5)
    assert asked(policy, 5, 3e-4, 1e-6, 0.1).count("C") >= 4


def test_what_is_clearly_slower_is_tried_as_much_more_rarely(make: Any) -> None:
    """At 0.01 and an eighth of it, 3.75 ms after the first; then three times as long."""
    policy = make()
    chosen = asked(policy, 400, 1e-4, 3e-4, 0.0)
    assert [place for place, path in enumerate(chosen) if path == "C"] == [64, 102, 215, 328]


def test_what_is_clearly_slower_is_tried_an_eighth_as_often_at_least(make: Any) -> None:
    """After 0.25 s, then each 2 s; where it is known that would be each 16 s.

    But at 13 s the server becomes slower still, so that it is each 2 s.
    """
    policy = make()
    chosen = asked(policy, 13_000, 1e-4, 0.020055, 0.0, step_s=1e-3)
    tried = [place for place, path in enumerate(chosen) if path == "C"]
    assert tried == [64, 315, 2321, 4327, 6333, 8339, 10345, 12351]
    assert asked(policy, 4_000, 0.021, 0.020055, 13.0, step_s=1e-3).count("C") == 2


def test_a_busy_server_is_not_clearly_faster(make: Any) -> None:
    """What leaving it is worth may change: each 30 ms the client's way is tried, else each 90."""
    policy = make()
    asked(policy, 1200, 1e-4, 3e-4, 0.0)  # known since 78 ms
    assert asked(policy, 9000, 1e-4, 3e-4, 1.0).count("C") == 10
    busy(policy, 1, 1.9)
    assert policy.server_share == 1.0  # leaving does not pay
    assert asked(policy, 8800, 1e-4, 3e-4, 1.9).count("C") in (29, 30)
    busy(policy, 1, 2.8, share=0.5, first=2000)
    assert asked(policy, 8800, 1e-4, 3e-4, 2.8).count("C") in (9, 10)


def test_what_is_longer_only_now_is_no_reason_while_the_server_has_time(make: Any) -> None:
    """Empty, the server's way is the shorter one; that it takes twice as long may be our doing."""
    policy = make()
    asked(policy, 300, 5e-5, 2e-4, 0.0)
    chosen = asked(policy, 2000, 4e-4, 2e-4, 0.03)
    assert chosen.count("C") < 20
    assert policy.server_least_s < policy.client_least_s < policy.server_s


def test_a_server_four_times_slower_need_not_say_that_it_is_busy(make: Any) -> None:
    policy = make()
    asked(policy, 300, 5e-5, 2e-4, 0.0)
    assert asked(policy, 500, 4e-3, 2e-4, 0.03)[-100:] == "C" * 100
    # Tried each 0.4 s at first; what comes after a silence weighs more.
    back = asked(policy, 6000, 5e-5, 2e-4, 1.0, step_s=1e-3)
    assert back[1000:].count("S") > 4500


def test_who_asks_seldom_tries_seldom(make: Any) -> None:
    policy = make()
    asked(policy, 300, 5e-5, 2e-4, 0.0, step_s=0.5)
    assert asked(policy, 330, 5e-5, 2e-4, 150.0, step_s=0.5).count("C") in (9, 10)


def test_an_outlier_counts_as_four_averages(make: Any) -> None:
    policy = make()
    asked(policy, 64, 1e-4, 1e-3, 0.0)
    before = policy.server_s
    policy.observe(S, 10.0, 0.0064)
    assert policy.server_s == pytest.approx(before * (1 + 3 / 32))


def test_the_floor_falls_fast_and_rises_slowly(make: Any) -> None:
    policy = make()
    for number in range(8):  # the least of those that make a way known
        policy.observe(S, 8e-4 if number == 5 else 16e-4, 0.0)
    assert policy.server_least_s == 8e-4
    policy.observe(S, 4e-4, 0.0)
    assert policy.server_least_s == pytest.approx(7.5e-4)
    policy.observe(S, 1.0, 0.001)
    assert policy.server_least_s == pytest.approx(7.5e-4 * 1.001)
    policy.observe(S, 1.0, 0.501)
    assert policy.server_least_s == pytest.approx(7.5e-4 * 1.001 * (1 + 1 / 256))


# ---- heartbeats


def test_a_busy_server_is_left_by_growing_steps(make: Any) -> None:
    """From [(r - 1)/8, r/8) of the requests each time, at most half: here the middle of it."""
    policy, share = make(), 1.0
    policy.choose(0.0)
    for rounds in range(1, 9):
        busy(policy, 1, 0.0, first=rounds)
        share *= 1 - min((rounds - 0.5) / 8, 0.5)
        assert (policy.busy_rounds, policy.server_share) == (rounds, pytest.approx(share))
    busy(policy, 1, 0.0, share=0.19, first=100)  # 0.95 / 0.19 would be more than twice
    assert policy.server_share == pytest.approx(2 * share / (1 + share))
    assert policy.busy_rounds == 0


def test_the_same_heartbeat_again_says_nothing(make: Any) -> None:
    policy = make()
    policy.choose(0.0)
    busy(policy, 1, 0.0)
    share = policy.server_share
    busy(policy, 1, 0.001)
    assert policy.server_share == share < 1.0


def test_a_busy_server_is_kept_where_the_clients_way_takes_twice_as_long(make: Any) -> None:
    for client_s, stays in ((2.1e-4, True), (1.9e-4, False)):
        policy = make()
        asked(policy, 200, 1e-4, client_s, 0.0)
        busy(policy, 1, 0.02)
        assert (policy.server_share == 1.0) is stays


def test_silence_is_no_sign_of_being_busy(make: Any) -> None:
    policy = make()
    policy.choose(0.0)
    busy(policy, 4, 0.0)
    share = policy.server_share
    policy.choose(0.0199)
    assert policy.server_share == share
    for number in range(3):  # two intervals after the last one, and each interval from then on
        policy.choose(0.0201 + number * 0.0101)
        share = 2 * share / (1 + share)
        assert policy.server_share == pytest.approx(share)


def test_requests_of_both_kinds_alternate(make: Any) -> None:
    policy = make()
    asked(policy, 200, 1e-4, 1.5e-4, 0.0)
    busy(policy, 4, 0.02)  # 1, 3, 5 and 7 sixteenths less
    assert policy.server_share == pytest.approx(15 * 13 * 11 * 9 / 16**4)
    assert asked(policy, 100, 1e-4, 1.5e-4, 0.02).count("S") in (28, 29, 30)


def test_answers_that_wait_for_the_end_of_a_period_count_in_full(make: Any) -> None:
    """One in 41 takes 10 ms: as an outlier it would count as four of the others."""
    policy = make()
    asked(policy, 65, 1e-4, 5e-4, 0.0)
    for number in range(10):
        now = 0.01 * (number + 1)
        asked(policy, 40, 1e-4, 5e-4, now)
        policy.observe(S, 1e-2, now + 0.005)
    assert policy.client_s > policy.server_s * 2.0
    busy(policy, 1, 0.11)
    assert policy.server_share < 1.0


# ---- requests under way


def windows(
    policy: Any, number: int, with_some: int, without: int, busy_share: float = 1.0
) -> list[bool]:
    """Ask with one request of the client's under way.

    So many requests get done in a window while the server gets some of them, or none: which was it?
    """
    lent: list[bool] = []
    now, sequence, began = 0.06, 10_000, 0.06
    policy.choose(now)
    lends = bool(policy.lends)
    while len(lent) < number:
        now += 0.04 / (with_some if lends else without)
        sequence += 1
        policy.heartbeat(busy_share, sequence, now)
        path = policy.choose(now)
        policy.observe(path, 1e-4 if path is S else 1.5e-4, now)
        if policy.lends != lends or now - began > 0.0405:
            lent += [lends] * max(1, round((now - began) / 0.0405))
            lends, began = bool(policy.lends), now
    return lent[:number]


def busy_and_known(make: Any) -> Any:
    policy = make()
    asked(policy, 300, 1e-4, 1.5e-4, 0.0)
    busy(policy, 40, 0.03)
    assert policy.server_share == pytest.approx(1e-4)
    return policy


def test_whether_the_server_has_one_of_several_is_tried(make: Any) -> None:
    """What gets done tells, and now and then the other way is tried again."""
    pays, does_not, alike = (
        windows(busy_and_known(make), 60, *counts) for counts in ((60, 55), (55, 60), (50, 50))
    )
    assert pays[:4] == [True, False, True, True] and 54 <= sum(pays) <= 55
    assert does_not[:4] == [True, False, False, False] and 4 <= sum(does_not) <= 6
    assert 2 <= sum(alike) <= 30


def test_what_was_far_worse_is_tried_more_rarely(make: Any) -> None:
    """It would cost more than the hundredth that `explore` allows: 1 - 50 / 100 each 50 windows."""
    pays = windows(busy_and_known(make), 120, 100, 50)
    tried = [place for place, some in enumerate(pays) if not some]
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert tried[0] == 1  # neither is known in the beginning
    assert pauses[:3] == [5, 9, 17]  # one window may have been a bad one
    assert all(48 <= pause <= 52 for pause in pauses[4:])


def four_at_a_time(policy: Any, windows: int, some: int, without: int) -> str:
    """Ask a server that has time; so many get done in a window where it gets some, or none.

    Returns what was asked in the second half, S and C.
    """
    under_way: deque[tuple[l5.Path, float]] = deque()
    chosen, now, number = "", 0.06, 0
    while now < 0.06 + windows * 0.04:
        now += 0.04 / (some if policy.lends else without)
        number += 1
        if number % 100 == 0:
            policy.heartbeat(0.1, 10 + number, now)
        if len(under_way) == 4:
            path, begun = under_way.popleft()
            policy.observe(path, now - begun, now)
        under_way.append((policy.choose(now), now))
        chosen += "S" if under_way[-1][0] is S else "C"
    for path, begun in under_way:
        policy.observe(path, now - begun, now)
    return chosen[len(chosen) // 2 :]


def test_a_server_that_has_time_gets_none_of_several_where_that_gets_less_done(make: Any) -> None:
    """To ask may cost the client's processor more than to search."""
    policy = make()
    asked(policy, 300, 1e-4, 1.5e-4, 0.0)
    assert policy.server_share == 1.0
    assert four_at_a_time(policy, 12, 1500, 1600).count("S") <= 160  # what is tried
    assert not policy.lends and policy.server_share == 1.0
    one_at_a_time = asked(policy, 48, 1e-4, 1.5e-4, 0.6)
    assert one_at_a_time[-8:] == "S" * 8  # then it decides that the server has time


def test_a_server_that_has_time_is_asked_where_that_gets_more_done(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-4, 1.5e-4, 0.0)
    assert four_at_a_time(policy, 12, 1600, 1500).count("C") <= 1500  # a window of six is tried
    assert policy.lends


def test_a_server_far_faster_than_all_of_ours_is_not_left_for_a_trial(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-4, 1e-3, 0.0)
    assert "CCC" not in four_at_a_time(policy, 12, 1600, 200)
    assert policy.lends


def test_one_of_several_goes_to_a_busy_server(make: Any) -> None:
    """The others wait for nothing meanwhile; who has only one lets the share decide."""
    policy = busy_and_known(make)
    windows(policy, 4, 60, 40)
    now = 0.06 + 4 * 0.041
    assert policy.outstanding == (0, 1) and policy.lends
    assert [policy.choose(now) for _ in range(3)] == [S, C, C]
    policy.observe(C, 1.5e-4, now)
    assert policy.choose(now) is C
    policy.observe(S, 1e-4, now)
    assert [policy.choose(now) for _ in range(2)] == [S, C]
    policy.observe(S, 1e-4, now)
    policy.observe(C, 1.5e-4, now, requests=4)
    assert policy.outstanding == (0, 0)
    assert policy.choose(now) is C


def test_a_server_far_slower_than_all_of_ours_gets_none(make: Any) -> None:
    """Two under way here take 0.15 ms: the server may take twice as long."""
    for server_s, first in ((2.5e-4, S), (4.5e-4, C)):
        policy = busy_and_known(make)
        windows(policy, 4, 60, 40)
        now = 0.06 + 4 * 0.041
        for _ in range(600):
            policy.observe(S, server_s, now)
        assert policy.choose(now) is first


def test_a_server_has_no_larger_part_of_what_is_under_way_than_its_share(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-4, 1.5e-4, 0.0)
    busy(policy, 3, 0.03)  # 1, 3 and 5 sixteenths less
    assert policy.server_share == pytest.approx(15 * 13 * 11 / 16**3)  # 0.52
    chosen = [policy.choose(0.03) for _ in range(40)]
    for number in range(1, 41):
        assert chosen[:number].count(S) <= max(1.0, 0.53 * number + 1.0)
    for path in chosen:
        if path is C:
            policy.observe(C, 1.5e-4, 0.03)
    assert [policy.choose(0.03) for _ in range(10)] == [C] * 10


def test_a_server_that_answers_nothing_gets_no_more(make: Any) -> None:
    """Both ways together take 0.3 ms: after that, others of the client's tasks search here."""
    policy = make()
    asked(policy, 300, 1e-4, 2e-4, 0.0)
    assert [policy.choose(0.03), policy.choose(0.0302)] == [S, S]
    assert policy.choose(0.0304) is C
    policy.observe(S, 4e-4, 0.0304)
    assert policy.choose(0.0305) is S
    assert policy.outstanding == (2, 1)


def test_what_comes_to_nothing_is_no_longer_under_way(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-4, 2e-4, 0.0)
    before = policy.server_s
    policy.choose(0.03)
    policy.observe(S, float("inf"), 0.03005)  # sooner than an answer: that tells nothing
    assert (policy.server_s, policy.outstanding) == (before, (0, 0))
    policy.choose(0.031)
    policy.observe(S, float("inf"), 1.031)  # it would have taken longer than that
    assert policy.server_s == pytest.approx(before + (1.0 - before) * 0.5, rel=0.02)
    assert policy.choose(1.0311) is C
    for wrong in (float("nan"), -1.0):
        policy.observe(S, wrong, 1.032)
    assert policy.outstanding == (0, 1)


def test_some_at_once(make: Any) -> None:
    policy = make()
    for _ in range(10):
        policy.choose(0.0)
    policy.observe(S, 1e-5, 0.001, 0, 9)
    assert policy.outstanding == (1, 0)
    policy.observe(S, 1e-5, 0.001, requests=9)
    assert policy.outstanding == (0, 0)


def test_who_never_observes_is_forgiven(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-4, 2e-4, 0.0)
    now = 0.03
    policy.choose(now)
    taken = set[l5.Path]()
    for number in range(80):
        path = policy.choose(now + number * 0.05)
        taken.add(path)
        if path is C:
            policy.observe(path, 2e-4, now + number * 0.05)
    assert taken == {S, C}


def test_after_a_silence_all_is_forgotten(make: Any) -> None:
    policy = make()
    asked(policy, 300, 1e-3, 1e-6, 0.0)
    busy(policy, 5, 0.03)
    assert asked(policy, 64, 1e-3, 1e-6, 4.0) == "S" * 64
    assert policy.server_share == 1.0


# ---- the same in C


phases = st.lists(
    st.tuples(
        st.integers(1, 300),  # requests
        st.floats(1e-7, 0.1),  # the server's latency
        st.floats(1e-7, 0.1),  # the client's
        st.floats(0.0, 3.0),  # how much either varies
        st.sampled_from([1e-5, 1e-3, 0.02, 0.7, 3.1]),  # between requests
        st.integers(1, 6),  # at once
        st.floats(0.0, 1.0),  # busy
        st.sampled_from([0.0, 0.0, 0.1, 0.7]),  # what part comes to nothing
    ),
    min_size=1,
    max_size=5,
)
settings_of = st.tuples(
    st.integers(1, 20),
    st.floats(0.1, 1.0),
    st.floats(0.001, 0.1),
    st.floats(0.001, 0.5),
    st.floats(0.5, 5.0),
)


def state(policy: Any) -> tuple[Any, ...]:
    names = (
        "lends server_share busy_rounds outstanding server_s client_s server_least_s client_least_s"
    )
    return tuple(getattr(policy, name) for name in names.split())


@pytest.mark.skipif(not native.available, reason=native.reason or "no C")
@settings(max_examples=60, deadline=None)
@given(phases, settings_of, st.integers(0, 2**32))
@example([(300, 1e-4, 2e-4, 0.5, 1e-3, 4, 1.0, 0.1)] * 3, GIVEN, 1)
@example([(300, 1e-4, 1e-6, 0.5, 1e-3, 1, 1.0, 0.0)] * 3, GIVEN, 2)
def test_traces_are_the_same(trace: list[Any], given: Any, seed: int) -> None:
    n, threshold, interval_s, explore, stale_s = given
    one: Any = l5.AdaptivePolicy(
        n=n,
        threshold=threshold,
        interval_s=interval_s,
        explore=explore,
        stale_s=stale_s,
        random=random.Random(seed).random,
    )
    other: Any = AdaptiveModel(random.Random(seed).random, *given)
    assert isinstance(one, native.Adaptive)
    noise = random.Random(seed + 1)
    now, sequence = 0.0, 0
    under_way: list[l5.Path] = []
    for count, server_s, client_s, varies, step_s, at_once, share, fails in trace:
        for _ in range(count):
            now += step_s * noise.random()
            under_way.append(other.choose(now))
            assert one.choose(now) is under_way[-1]
            while len(under_way) >= at_once:
                path = under_way.pop(noise.randrange(len(under_way)))
                took = (server_s if path is S else client_s) * (1 + varies * noise.random() ** 8)
                if noise.random() < fails:
                    took = float("inf")
                for policy in (one, other):
                    policy.observe(path, took, now, 3)
            if noise.random() < 0.1:
                sequence += noise.random() < 0.8
                said = min(1.0, share + noise.random() * 0.2)
                for policy in (one, other):
                    policy.heartbeat(said, sequence, now)
            assert state(one) == state(other)


@pytest.mark.skipif(not native.available, reason=native.reason or "no C")
def test_arguments_by_name_and_wrong_ones() -> None:
    policy: Any = l5.AdaptivePolicy(random=half)
    policy.choose(0.0)
    policy.observe(path=S, latency_s=1e-6, now=0.0, reads=0, requests=1)
    policy.heartbeat(busy_share=1.0, sequence=1, now=0.0)
    for arguments, names in (
        ((S, 1e-6), {}),
        ((S, 1e-6, 0.0, 1, 1, 1), {}),
        ((S, 1e-6, 0.0), {"now": 0.0}),
        ((S, 1e-6, 0.0), {"read": 1}),
        ((S, "long", 0.0), {}),
        ((S, 1e-6, "now"), {}),
        ((S, 1e-6, 0.0, 0, "some"), {}),
    ):
        with pytest.raises(TypeError):
            policy.observe(*arguments, **names)
    for wrong in (lambda: policy.choose("now"), lambda: policy.heartbeat("busy", 1, 0.0)):
        with pytest.raises(TypeError):
            wrong()
    assert policy.outstanding == (0, 0)


def test_no_fewer_requests_than_none() -> None:
    for policy in (l5.AdaptivePolicy(random=half), AdaptiveModel(half, 8, 0.95, 0.01, 0.01, 3.0)):
        for requests in (-1, -(2**63)):
            with pytest.raises(ValueError, match=f"requests={requests}"):
                policy.observe(S, 1e-6, 0.0, 0, requests)
        policy.observe(S, 1e-6, 0.0, 0, 0)
        assert policy.outstanding == (0, 0)


@pytest.mark.skipif(not native.available, reason=native.reason or "no C")
def test_a_policy_that_was_not_initialised_says_so() -> None:
    policy: Any = l5.AdaptivePolicy.__new__(l5.AdaptivePolicy)
    with pytest.raises(RuntimeError, match="not initialised"):
        policy.choose(0.0)
    with pytest.raises(RuntimeError, match="not initialised"):
        policy.heartbeat(1.0, 1, 0.0)


@pytest.mark.skipif(not native.available, reason=native.reason or "no C")
def test_errors_of_the_source_of_chance_are_passed_on() -> None:
    class Spent(Exception):
        pass

    draws = [0.5, 0.5]

    def draw() -> float:
        if not draws:
            raise Spent
        return draws.pop()

    policy = l5.AdaptivePolicy(random=draw)
    policy.choose(0.0)
    with pytest.raises(Spent):
        policy.heartbeat(1.0, 1, 0.0)
    assert policy.server_share == 1.0
    with pytest.raises(Spent):
        l5.AdaptivePolicy(random=draw)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n": 0}, "n=0"),
        ({"threshold": 0.0}, r"threshold=0\.0"),
        ({"threshold": 1.1}, r"threshold=1\.1"),
        ({"interval_s": 0.0}, r"interval_s=0\.0"),
        ({"explore": 0.0}, r"explore=0\.0"),
        ({"explore": 1.0}, r"explore=1\.0"),
        ({"stale_s": 0.0}, r"stale_s=0\.0"),
    ],
)
def test_impossible_settings(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        l5.AdaptivePolicy(**given)
