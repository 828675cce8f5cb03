"""Depth, selective signalling, completion queues and what wakes an event loop."""

import select
from functools import partial

import anyio
import pytest

from l5.rdma import verbs
from l5.rdma.verbs import INLINE, OP_WRITE, OP_WRITE_WITH_IMM, SIGNALED, SendSlots

from ._rig import End, Rig, completed, quiet, until


def flag(one: End, other: End, opcode: int = OP_WRITE) -> verbs.SendRequest:
    return one.pair.prepare(
        opcode,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
    )


def test_counted_slots_are_never_too_many_and_completions_few(rig: Rig) -> None:
    one, other = rig.pair(verbs.QueuePairOptions(send_depth=64))
    slots = SendSlots(one.pair.send_depth)
    request = flag(one, other)
    polled = 0
    for _ in range(1000):
        while not slots.free:
            found = completed(one.sends)
            polled += len(found)
            slots.done(len(found))
        request.post(8, slots.take(1, INLINE))
    until(lambda: slots.signalled == 1000 // 32)
    found = completed(one.sends, slots.signalled - polled)
    slots.done(len(found))
    assert slots.completed == 992 and slots.outstanding == 8
    quiet(one.sends)


def test_an_l5_request_is_two_posts_and_every_sixteenth_completes(rig: Rig) -> None:
    one, other = rig.pair(verbs.QueuePairOptions(send_depth=64))
    slots = SendSlots(one.pair.send_depth)
    both = one.pair.prepare_pair(flag(one, other), flag(one, other))
    polled = 0
    for _ in range(64):
        both.post(8, INLINE, slots.take(2, INLINE))
        if slots.free < 2:
            polled += len(completed(one.sends))
            slots.done()
    polled += len(completed(one.sends, slots.signalled - polled))
    assert (slots.posted, slots.signalled, polled) == (128, 4, 4)
    quiet(one.sends)


def test_a_full_queue_of_writes_and_reads(rig: Rig) -> None:
    one, other = rig.pair(verbs.QueuePairOptions(send_depth=32))
    write = flag(one, other)
    batch = one.pair.prepare_reads(one.area.region, rkey=other.area.region.rkey, count_max=16)
    slots = SendSlots(32)
    for _ in range(10):
        for _ in range(16):
            write.post(8, slots.take(1, INLINE))
        reads = [(one.area.address + 64, other.area.address, 8)] * 16
        batch.post(reads, slots.take(16))
        assert slots.free == 0
        found = completed(one.sends, 2)
        slots.done(len(found))
        assert slots.free == 32


def test_queue_pairs_share_a_completion_queue(rig: Rig) -> None:
    one, other = rig.pair()
    shared = one.sends
    second = one.domain.queue_pair(shared, one.receives, verbs.QueuePairOptions())
    target = rig.end()
    gid = rig.place.gid
    mine, theirs = second.own_address(gid), target.pair.own_address(gid)
    second.connect(theirs, verbs.agree(mine, theirs), gid=gid)
    target.pair.connect(mine, verbs.agree(theirs, mine), gid=gid)
    flag(one, other).post(1, SIGNALED)
    second.prepare(
        OP_WRITE,
        one.area.region,
        address=one.area.address,
        remote_address=target.area.address,
        rkey=target.area.region.rkey,
    ).post(1, SIGNALED)
    numbers = {done.qp_number for done in completed(shared, 2)}
    assert numbers == {one.pair.number, second.number}
    second.close()


def test_poll_takes_no_more_than_it_is_told(rig: Rig) -> None:
    one, other = rig.pair()
    request = flag(one, other)
    for index in range(10):
        request.set_id(index)
        request.post(1, SIGNALED)
    found: list[int] = []
    until(lambda: bool(found.extend(done.wr_id for done in one.sends.poll(3))) or len(found) >= 3)
    assert len(found) == 3 or found == list(range(len(found)))
    found += [done.wr_id for done in completed(one.sends, 10 - len(found))]
    assert found == list(range(10))
    assert not one.sends.poll(3)


# -- events


def ready(queue: verbs.CompletionQueue) -> bool:
    return bool(select.select([queue.fileno()], [], [], 0)[0])


def test_a_queue_that_is_not_armed_gives_no_event(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    flag(one, other).post(1, SIGNALED)
    completed(one.sends)
    assert not ready(one.sends) and one.sends.drain_events() == 0


def test_an_armed_queue_gives_one_event(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    one.sends.arm()
    assert not ready(one.sends)
    for _ in range(3):
        flag(one, other).post(1, SIGNALED)
    until(lambda: ready(one.sends))
    completed(one.sends, 3)
    assert one.sends.drain_events() == 1
    assert not ready(one.sends) and one.sends.drain_events() == 0
    for turn in range(100):
        one.sends.arm()
        flag(one, other).post(1, SIGNALED)
        until(lambda: ready(one.sends))
        assert one.sends.drain_events() == 1, turn
        completed(one.sends)


def test_arming_beside_completions_that_wait_tells_of_the_next_alone(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    flag(one, other).post(1, SIGNALED)
    other.pair.prepare_receive().post()
    flag(one, other, OP_WRITE_WITH_IMM).post(1, 0, 1)
    completed(other.receives)  # so the write before it has completed, or is about to
    one.sends.arm()
    flag(one, other).post(1, SIGNALED)
    until(lambda: ready(one.sends))
    assert one.sends.drain_events() == 1
    completed(one.sends, 2)


def test_a_queue_is_closed_with_events_that_nobody_took(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    for queue in (one.sends, other.receives):
        queue.arm()
    other.pair.prepare_receive().post(2)
    flag(one, other, OP_WRITE_WITH_IMM).post(1, SIGNALED, 5)
    until(lambda: ready(one.sends) and ready(other.receives))
    assert one.sends.drain_events() == 1  # one taken, one not; the rig closes both


def test_a_flushed_receive_is_an_event_too(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    other.receives.arm()
    other.pair.prepare_receive().post()
    other.pair.to_error()
    until(lambda: ready(other.receives))
    assert not other.receives.poll()[0].ok and one.pair.number
    other.receives.drain_events()


def test_a_queue_made_without_events_says_so(rig: Rig) -> None:
    end = rig.end()
    for call in (end.sends.fileno, end.sends.arm, end.sends.drain_events):
        with pytest.raises(verbs.VerbsError, match="without events"):
            call()


async def next_of(queue: verbs.CompletionQueue) -> verbs.Completion:
    """Take one completion the way that loses none."""
    while True:
        if found := queue.poll(1):
            return found[0]
        queue.arm()
        if found := queue.poll(1):
            return found[0]
        await anyio.wait_readable(queue.fileno())
        queue.drain_events()


@pytest.mark.anyio
async def test_an_event_loop_sleeps_and_loses_nothing(rig: Rig) -> None:
    """Two tasks answer each other, each turn through a completion that was waited for."""
    turns = 40
    ends = rig.pair(verbs.QueuePairOptions(receive_depth=8), events=True)
    for end in ends:
        end.pair.prepare_receive().post(8)

    async def play(me: End, other: End, begins: bool) -> None:
        request = flag(me, other, OP_WRITE_WITH_IMM)
        slots = SendSlots(me.pair.send_depth)
        receive = me.pair.prepare_receive()
        for turn in range(turns):
            if not begins or turn:
                got = await next_of(me.receives)
                assert got.immediate == (turn if not begins else turn - 1)
                receive.post()
            request.post(0, slots.take(), turn)
            slots.done(len(me.sends.poll()))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(play, *ends, True))
            group.start_soon(partial(play, *reversed(ends), False))
    assert (await next_of(ends[0].receives)).immediate == turns - 1


@pytest.mark.anyio
async def test_a_sleeper_is_woken_by_another_thread(rig: Rig) -> None:
    one, other = rig.pair(events=True)
    other.pair.prepare_receive().post()
    request = flag(one, other, OP_WRITE_WITH_IMM)
    other.receives.arm()
    assert not other.receives.poll()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.wait_readable, other.receives.fileno())
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(request.post, 1, SIGNALED, 9)
    other.receives.drain_events()
    assert completed(other.receives)[0].immediate == 9
