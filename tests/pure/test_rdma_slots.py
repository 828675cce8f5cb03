"""Counting the slots of a send queue: never too many, never without a completion to wait for."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l5.rdma import _slots
from l5.rdma.verbs import SIGNALED, ResourceClosed, SendQueueFull, SendSlots


@pytest.fixture(params=["Python", "C"], autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test counts in Python and in C."""
    if request.param == "Python":
        monkeypatch.setattr(_slots, "_in_c", None)
    elif _slots._in_c is None:
        pytest.skip("no C core: this Python has none")


def test_two_posts_a_request_are_signalled_each_half_queue() -> None:
    slots = SendSlots(64)
    signalled = [bool(slots.take(2) & SIGNALED) for _ in range(32)]
    assert [index for index, flag in enumerate(signalled) if flag] == [15, 31]
    assert (slots.free, slots.outstanding, slots.signalled) == (0, 64, 2)
    with pytest.raises(SendQueueFull, match="poll"):
        slots.take()
    slots.done()
    assert (slots.free, slots.completed) == (32, 32)


def test_flags_are_kept_and_a_signal_can_be_asked_for() -> None:
    slots = SendSlots(64)
    assert slots.take(flags=8) == 8
    assert slots.take(flags=8 | SIGNALED) == 8 | SIGNALED
    slots.done()
    assert slots.outstanding == 0


@pytest.mark.parametrize("count", [0, -1, 9])
def test_a_batch_takes_at_most_half(count: int) -> None:
    slots = SendSlots(16)
    with pytest.raises(ValueError, match="1 to 8 slots"):
        slots.take(count)
    assert slots.posted == 0


def test_after_closing_nothing_may_be_posted_and_the_reason_is_said() -> None:
    slots = SendSlots(16)
    slots.take()
    slots.close("the peer is gone")
    slots.close("another reason")
    assert slots.free == 0
    with pytest.raises(ResourceClosed, match="the peer is gone"):
        slots.take()


def test_a_forked_child_may_post_nothing() -> None:
    slots = SendSlots(16)
    child = os.fork()
    if child == 0:
        try:
            slots.take()
        except ResourceClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert slots.take() == 0


@settings(max_examples=200, deadline=None)
@given(depth=st.integers(2, 40), steps=st.lists(st.integers(0, 25), max_size=80))
def test_a_full_queue_has_always_a_completion_to_wait_for(depth: int, steps: list[int]) -> None:
    """Model: the device frees slots only up to a signalled request that was polled."""
    slots = SendSlots(depth)
    queue: list[bool] = []  # the device's: signalled or not
    for step in steps:
        count = min(step, slots.batch_max)
        if count == 0:
            if True in queue:
                del queue[: queue.index(True) + 1]
                slots.done()
        else:
            try:
                flags = slots.take(count)
            except SendQueueFull:
                assert len(queue) + count > depth and True in queue
                continue
            queue += [False] * (count - 1) + [bool(flags & SIGNALED)]
        assert len(queue) == slots.outstanding == depth - slots.free <= depth
        assert queue[::-1].index(True) < depth // 2 if True in queue else len(queue) < depth // 2
