"""Policies that follow heartbeats, against traces computed by hand."""

import random
from collections.abc import Callable, Iterator

import pytest

import l5

S, C = l5.Path.SERVER, l5.Path.CLIENT
INTERVAL_S = 0.010


def draws(*numbers: float) -> Callable[[], float]:
    """Return a source of chance that is none; it fails when more is drawn than foreseen."""
    source: Iterator[float] = iter(numbers)
    return lambda: next(source)


def paths(policy: l5.OffloadPolicy, now: float, count: int) -> str:
    """Choose for some requests in one moment; S and C, in order."""
    return "".join("S" if policy.choose(now) is S else "C" for _ in range(count))


# ---- pure modes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "path"), [(l5.AlwaysServer(), l5.Path.SERVER), (l5.AlwaysClient(), l5.Path.CLIENT)]
)
def test_pure_modes_learn_nothing(policy: l5.OffloadPolicy, path: l5.Path) -> None:
    policy.heartbeat(1.0, 1, 0.0)
    policy.observe(path, 9.0, 0.0)
    assert [policy.choose(float(now)) for now in range(3)] == [path] * 3


# ---- Algorithm 1 -----------------------------------------------------------------------------


def test_the_paper_offloads_a_random_number_below_n() -> None:
    policy = l5.PaperBackoffPolicy(random=draws(0.5))
    assert paths(policy, 0.0, 3) == "SSS"  # no heartbeat yet
    policy.heartbeat(0.96, 1, 0.001)
    assert paths(policy, 0.001, 6) == "CCCCSS"  # floor(0.5 * 8) = 4


def test_the_paper_may_draw_nothing() -> None:
    policy = l5.PaperBackoffPolicy(random=draws(0.0))
    policy.heartbeat(1.0, 1, 0.0)
    assert paths(policy, 0.0, 2) == "SS"
    assert policy.busy_rounds == 0  # the second request found no heartbeat


def test_the_papers_rounds_grow_while_each_request_finds_the_server_busy() -> None:
    policy = l5.PaperBackoffPolicy(n=4, random=draws(0.25, 0.5, 0.75))
    trace: list[tuple[str, int, int]] = []
    for beat in range(3):
        now = beat * 0.011
        policy.heartbeat(1.0, beat, now)
        trace.append((paths(policy, now, 1), policy.busy_rounds, policy.remaining))
    # 1 of [0, 4), then 2 + 4 of [4, 8), then 3 + 8 of [8, 12); the request itself is one of them
    assert trace == [("C", 1, 0), ("C", 2, 5), ("C", 3, 10)]


def test_the_paper_draws_no_more_while_enough_is_to_be_offloaded() -> None:
    policy = l5.PaperBackoffPolicy(n=4, random=draws(0.75))
    policy.heartbeat(1.0, 1, 0.0)
    assert paths(policy, 0.0, 2) == "CC"  # 3 drawn; 1 remains and the second reset the rounds
    policy.heartbeat(1.0, 2, 0.020)
    assert paths(policy, 0.020, 2) == "CS"  # 1 > 0 * 4: nothing is drawn


def test_the_paper_reads_no_heartbeat_before_the_interval_is_over() -> None:
    policy = l5.PaperBackoffPolicy(random=draws(0.125, 0.125))
    policy.heartbeat(1.0, 1, 0.0)
    assert paths(policy, 0.0, 2) == "CS"
    policy.heartbeat(1.0, 2, 0.009)
    assert paths(policy, INTERVAL_S, 1) == "S"  # not more than Inv
    assert paths(policy, 0.0101, 2) == "CS"


@pytest.mark.parametrize("busy", [0.0, 0.5, 0.95])
def test_the_paper_stays_at_the_threshold_and_below(busy: float) -> None:
    policy = l5.PaperBackoffPolicy(random=draws())
    policy.heartbeat(busy, 1, 0.0)
    assert paths(policy, 0.0, 4) == "SSSS"


def test_the_same_heartbeat_counts_once() -> None:
    policy = l5.PaperBackoffPolicy(random=draws(0.25))
    policy.heartbeat(1.0, 7, 0.0)
    assert paths(policy, 0.0, 3) == "CCS"
    policy.heartbeat(1.0, 7, 0.020)
    assert paths(policy, 0.020, 3) == "SSS"


# ---- the default -----------------------------------------------------------------------------


def busy(policy: l5.BackoffPolicy, share: float, *beats: int) -> float:
    for beat in beats:
        policy.heartbeat(share, beat, beat * INTERVAL_S)
    return policy.server_share


def test_rounds_back_off_by_parts_of_what_goes_to_the_server() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0, 0.5, 0.25, 0.75, 0.0, 0.5, 0.5))
    shares = [busy(policy, 1.0, beat) for beat in range(1, 7)]
    steps = [0.5 / 8, 1.25 / 8, 2.75 / 8, 3.0 / 8, 0.5, 0.5]  # the fifth would be 4.5 / 8
    expected: list[float] = []
    for step in steps:
        expected.append((expected[-1] if expected else 1.0) * (1 - step))
    assert shares == pytest.approx(expected)
    assert policy.busy_rounds == 6


def test_a_decision_stands_until_the_next_heartbeat() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    policy.server_share = 0.25
    policy.heartbeat(0.95, 1, 0.0)  # as busy as it may be: nothing to change
    assert paths(policy, 0.0, 12) == "CCCSCCCSCCCS"
    assert paths(policy, 0.019, 4) == "CCCS"


def test_a_share_of_three_quarters_alternates_evenly() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0))
    policy.server_share = 0.75
    assert paths(policy, 0.0, 8) == "CSSSCSSS"


def test_what_returns_is_what_the_server_has_room_for() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0))
    policy.server_share = 0.25
    assert busy(policy, 0.76, 1) == pytest.approx(1.25 / 4.25)  # 1 : 3 becomes 1.25 : 3
    assert busy(policy, 0.19, 2) == pytest.approx(2.5 / 5.5)  # not five times as many
    assert busy(policy, 0.0, 3) == pytest.approx(5 / 8)
    busy(policy, 0.0, 4, 5, 6, 7, 8)
    assert policy.server_share == pytest.approx(160 / 163)
    assert busy(policy, 0.0, 9) == 1.0  # 320 / 323 is nearly all


def test_rounds_begin_anew_after_the_server_was_not_busy() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0, 0.0, 0.0, 0.0, 0.0))
    busy(policy, 1.0, 1, 2, 3)
    assert policy.busy_rounds == 3
    busy(policy, 0.9, 4)
    assert policy.busy_rounds == 0
    share = policy.server_share
    assert busy(policy, 1.0, 5) == share  # [0, N) again, and 0 is drawn


def test_a_missing_heartbeat_is_not_busy() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0, 0.0))
    policy.heartbeat(1.0, 1, 1.0)
    policy.server_share = 0.125
    shares: list[float] = []
    for now in (1.015, 1.0201, 1.025, 1.031, 1.0411, 1.0512):
        policy.choose(now)
        shares.append(policy.server_share)
    assert shares == pytest.approx([1 / 8, 2 / 9, 2 / 9, 4 / 11, 8 / 15, 16 / 23])


def test_zero_is_a_heartbeat_and_none_is_no_step() -> None:
    policy = l5.BackoffPolicy(random=draws(0.0))
    policy.server_share = 0.1
    paths(policy, 5.0, 5)  # none was ever heard: nobody sends any
    assert policy.server_share == 0.1
    policy.heartbeat(0.0, 0, 5.0)
    assert policy.server_share == pytest.approx(2 / 11)
    policy.heartbeat(0.0, 0, 5.001)  # the same
    assert policy.server_share == pytest.approx(2 / 11)


def test_the_share_is_never_nothing() -> None:
    policy = l5.BackoffPolicy(random=random.Random(1).random)
    assert busy(policy, 1.0, *range(1, 200)) == l5.BackoffPolicy.SHARE_MIN


@pytest.mark.parametrize("ratio", [0.2, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_share_the_work_by_the_capacities(ratio: float, seed: int) -> None:
    """A fluid of 16 clients: what the server has no room for holds them up."""
    policies = [l5.BackoffPolicy(random=random.Random(100 * seed + n).random) for n in range(16)]
    done = 0.0
    for beat in range(600):
        share = sum(policy.server_share for policy in policies) / len(policies)
        # with the server's capacity 1, and all clients' together `ratio`, in a closed loop
        total = min(1.0 / share, ratio / (1.0 - share) if share < 1.0 else 1.0)
        for policy in policies:
            policy.heartbeat(min(1.0, total * share), beat, beat * INTERVAL_S)
        done += total if beat >= 100 else 0.0
    assert done / 500 >= 0.85 * (1.0 + ratio)


@pytest.mark.parametrize("make", [l5.BackoffPolicy, l5.PaperBackoffPolicy])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n": 0}, "n=0: expected"),
        ({"threshold": 0.0}, r"threshold=0\.0: expected a share"),
        ({"threshold": 1.5}, r"threshold=1\.5: expected a share"),
        ({"interval_s": 0.0}, r"interval_s=0\.0: expected seconds"),
    ],
)
def test_impossible_settings(
    make: Callable[..., object], given: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make(**given)


# ---- predictors ------------------------------------------------------------------------------


def test_the_average_forgets_slowly() -> None:
    average = l5.ExponentialAverage(0.25)
    assert [average(share) for share in (0.8, 0.4, 1.0)] == pytest.approx([0.8, 0.7, 0.775])


def test_the_trend_sees_overload_before_it_is_there() -> None:
    trend = l5.Trend(level_weight=1.0, change_weight=1.0)
    assert [trend(share) for share in (0.5, 0.6, 0.8, 0.7, 0.1, 0.0)] == pytest.approx(
        [0.5, 0.7, 1.0, 0.6, 0.0, 0.0]
    )
    assert l5.Trend()(0.3) == 0.3


def test_a_policy_acts_on_what_is_predicted() -> None:
    policy = l5.PaperBackoffPolicy(predictor=l5.Trend(1.0, 1.0), random=draws(0.5))
    policy.heartbeat(0.6, 1, 0.0)
    assert paths(policy, 0.0, 2) == "SS"
    policy.heartbeat(0.8, 2, 0.02)  # below the threshold, and 1.0 is to come
    assert paths(policy, 0.02, 6) == "CCCCSS"
