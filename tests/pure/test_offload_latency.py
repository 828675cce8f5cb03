"""The policy that follows latencies, against traces computed by hand."""

from collections.abc import Callable
from math import log1p

import pytest

import l5
from l5._offload_model import LatencyModel

S, C = l5.Path.SERVER, l5.Path.CLIENT
NEVER = 0.999999  # as a draw: the other path has its turn after some 1400 requests


def asked(
    policy: l5.LatencyPolicy,
    count: int,
    server_s: float,
    client_s: float,
    *,
    start: float = 0.0,
    reads: int = 4,
) -> str:
    """Make requests of given latencies, 1 ms apart; S and C, in order."""
    chosen = ""
    for number in range(count):
        now = start + number * 0.001
        path = policy.choose(now)
        chosen += "S" if path is S else "C"
        if path is S:
            policy.observe(path, server_s, now)
        else:
            policy.observe(path, client_s, now, reads)
    return chosen


def make(draw: float = NEVER, **given: float) -> l5.LatencyPolicy:
    return l5.LatencyPolicy(random=lambda: draw, **given)  # pyright: ignore[reportArgumentType]


def test_each_path_is_tried_once_and_the_shorter_queue_joined() -> None:
    assert asked(make(), 6, server_s=30e-6, client_s=40e-6) == "SCCCCC"
    assert asked(make(), 6, server_s=5e-6, client_s=40e-6) == "SCSSSS"


def test_reads_count_without_their_round_trips() -> None:
    """RTT is the fastest read, 2 us: 5 reads of 6 us wait 20 us, and the server 18 or 22 us."""
    for server_us, chosen in ((20, S), (24, C)):
        policy = make()
        asked(policy, 1, server_us * 1e-6, 0)
        policy.choose(0.001)
        policy.observe(C, 10e-6, 0.001, 5)  # 2 us each
        policy.observe(C, 50e-6, 0.001, 5)  # 10 us each; both together 6 us
        assert policy.choose(0.002) is chosen
        assert policy.round_trip_s == pytest.approx(2e-6)


def test_the_number_of_reads_is_learned() -> None:
    policy = make(reads=5.0)
    asked(policy, 2000, server_s=1.0, client_s=40e-6, reads=9)
    assert policy.reads == pytest.approx(9.0, rel=0.01)
    assert policy.round_trip_s == pytest.approx(40e-6 / 9)


def test_without_the_number_it_is_assumed() -> None:
    policy = make(reads=8.0)
    asked(policy, 300, server_s=1.0, client_s=40e-6, reads=0)
    assert policy.reads == 8.0
    assert policy.round_trip_s == pytest.approx(5e-6)


def test_the_other_path_has_its_turn_by_chance() -> None:
    # log(1 - 0.5) / log(1 - 0.1) = 6.6: after six, the seventh
    policy = make(0.5, explore=0.1)
    chosen = asked(policy, 30, server_s=5e-6, client_s=40e-6)
    assert chosen == "SCSSSSC" + "SSSSSSC" * 3 + "SS"


def test_exploration_finds_out_that_the_world_has_changed() -> None:
    policy = make(0.5, explore=0.1)
    before = asked(policy, 1000, server_s=5e-6, client_s=40e-6)
    after = asked(policy, 4000, server_s=900e-6, client_s=40e-6, start=1.0)
    assert before.count("S") > 800 and after[-1000:].count("C") > 800


def test_outliers_change_nothing() -> None:
    policy = make()
    asked(policy, 300, server_s=20e-6, client_s=400e-6)
    for number in range(600):  # one in ten takes a second, which would make the average 0.1 s
        assert policy.choose(1.0) is S
        policy.observe(S, 1.0 if number % 10 == 3 else 20e-6, 1.0)


def test_what_was_an_outlier_is_the_truth_when_there_is_more_of_it() -> None:
    policy = make(window=32)
    assert asked(policy, 2000, server_s=20e-6, client_s=400e-6)[-100:] == "S" * 100
    # 5 ms is more than three deviations off; after 32 of them the server's history is forgotten
    chosen = asked(policy, 2000, server_s=5e-3, client_s=400e-6, start=2.0)
    assert chosen[-100:] == "C" * 100


def test_after_a_silence_all_is_forgotten() -> None:
    policy = make(stale_s=3.0)
    assert asked(policy, 10, server_s=30e-6, client_s=4e-6)[-1] == "C"
    assert asked(policy, 6, server_s=3e-6, client_s=400e-6, start=3.009)[0] == "C"  # 3.000 s
    assert asked(policy, 6, server_s=3e-6, client_s=400e-6, start=6.1) == "SCSSSS"


def test_memory_is_bounded_whoever_forgets_to_choose() -> None:
    policy = LatencyModel(lambda: NEVER, 100, 3.0, log1p(-0.01), 3.0, 5.0)  # in C: arrays
    for _ in range(1000):
        policy.observe(S, 1e-6, 0.0)
        policy.observe(C, 1e-6, 0.0, 3)
    held: list[Callable[[], int]] = [policy._server.new.__len__, policy._client.new.__len__]  # pyright: ignore[reportPrivateUsage]
    assert [length() for length in held] == [16, 16]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"window": 15}, "window=15"),
        ({"outlier": 1.0}, r"outlier=1\.0"),
        ({"explore": 0.0}, r"explore=0\.0"),
        ({"explore": 1.0}, r"explore=1\.0"),
        ({"stale_s": 0.0}, r"stale_s=0\.0"),
        ({"reads": 0.5}, r"reads=0\.5"),
    ],
)
def test_impossible_settings(given: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**given)
