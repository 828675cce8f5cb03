"""What fails, how it is told, and what a queue pair is good for afterwards."""

import pytest

from l5.rdma import verbs
from l5.rdma.verbs import (
    FLUSHED,
    INLINE,
    LOCAL_PROTECTION_ERROR,
    LOCAL_QP_OPERATION_ERROR,
    LOCAL_WRITE,
    OP_COMPARE_AND_SWAP,
    OP_FETCH_AND_ADD,
    OP_READ,
    OP_SEND,
    OP_WRITE,
    OP_WRITE_WITH_IMM,
    QP_ERROR,
    QP_INIT,
    QP_READY_TO_SEND,
    QP_RESET,
    REMOTE_ACCESS_ERROR,
    REMOTE_INVALID_REQUEST,
    REMOTE_OPERATION_ERROR,
    REMOTE_READ,
    REMOTE_WRITE,
    RETRIES_EXCEEDED,
    RNR_RETRIES_EXCEEDED,
    SIGNALED,
    SUCCESS,
)

from ._rig import BYTES, End, Rig, completed, completions, quiet, until

QUICK = {"timeout": 10, "retries": 2}  # a peer that is gone is noticed within 20 ms


def request(
    one: End, other: End, opcode: int, *, offset: int = 0, rkey: int | None = None
) -> verbs.SendRequest:
    return one.pair.prepare(
        opcode,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address + offset,
        rkey=other.area.region.rkey if rkey is None else rkey,
        wr_id=1,
    )


def fails_with(one: End, *statuses: int) -> None:
    """Check for that one completion, and that the queue pair is dead from now on."""
    (done,) = completions(one.sends, 1)
    assert done.status in statuses, done.text
    assert not done.ok and done.wr_id == 1 and done.qp_number == one.pair.number
    assert one.pair.state == QP_ERROR
    late = one.pair.prepare(OP_WRITE, one.area.region, address=one.area.address, wr_id=9)
    late.post(1, SIGNALED)
    (flushed,) = completions(one.sends, 1)
    assert (flushed.wr_id, flushed.status) == (9, FLUSHED)


@pytest.mark.parametrize("opcode", [OP_WRITE, OP_READ])
@pytest.mark.parametrize("offset", [-1, BYTES - 7])
def test_one_byte_beyond_a_region(rig: Rig, opcode: int, offset: int) -> None:
    one, other = rig.pair()
    request(one, other, opcode, offset=offset).post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)
    assert not any(other.area.view)


@pytest.mark.parametrize("opcode", [OP_WRITE, OP_READ])
def test_a_wrong_key(rig: Rig, opcode: int) -> None:
    one, other = rig.pair()
    request(one, other, opcode, rkey=other.area.region.rkey ^ 0x5A).post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)


@pytest.mark.parametrize("opcode", [OP_WRITE, OP_READ])
def test_the_key_of_another_protection_domain(rig: Rig, opcode: int) -> None:
    one, other = rig.pair()
    stranger = rig.end()
    request(one, stranger, opcode).post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)
    assert not any(stranger.area.view) and other.area.region.rkey != 0


@pytest.mark.parametrize(
    ("access", "opcode"),
    [
        (LOCAL_WRITE | REMOTE_WRITE, OP_READ),
        (LOCAL_WRITE | REMOTE_READ, OP_WRITE),
        (LOCAL_WRITE, OP_READ),
        (LOCAL_WRITE, OP_WRITE),
    ],
)
def test_what_a_region_does_not_grant(rig: Rig, access: int, opcode: int) -> None:
    one, other = rig.pair(access=access)
    request(one, other, opcode).post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)


@pytest.mark.parametrize("opcode", [OP_COMPARE_AND_SWAP, OP_FETCH_AND_ADD])
def test_atomics_that_a_region_does_not_grant(rig: Rig, opcode: int) -> None:
    one, other = rig.pair(access=LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)
    atomic = one.pair.prepare_atomic(
        opcode, one.area.region, address=one.area.address, rkey=other.area.region.rkey, wr_id=1
    )
    atomic.post(other.area.address, 0, 1, wr_id=1)
    fails_with(one, REMOTE_ACCESS_ERROR)
    assert not any(other.area.view[:8])


def test_a_region_that_was_deregistered(rig: Rig) -> None:
    one, other = rig.pair()
    write = request(one, other, OP_WRITE)
    write.post(8, SIGNALED)
    completed(one.sends)
    extra = other.domain.register(other.area.address, 64, 7, owner=other.area.view)
    write.place(one.area.address, extra.address, extra.rkey)
    write.post(8, SIGNALED)
    completed(one.sends)
    extra.close()
    write.post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)


def test_local_memory_of_another_protection_domain(rig: Rig) -> None:
    one, other = rig.pair()
    wrong = one.pair.prepare(
        OP_WRITE,
        other.area.region,
        address=other.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
        wr_id=1,
    )
    wrong.post(8, SIGNALED)
    # Soft-RoCE gives the second: it looks at the memory while it makes the packet.
    fails_with(one, LOCAL_PROTECTION_ERROR, LOCAL_QP_OPERATION_ERROR)


def test_a_queue_pair_that_grants_no_writes(rig: Rig) -> None:
    one = rig.end()
    other = rig.end(verbs.QueuePairOptions(remote_access=REMOTE_READ))
    rig.connect(one, other)
    request(one, other, OP_READ).post(8, SIGNALED)
    completed(one.sends)
    request(one, other, OP_WRITE).post(8, SIGNALED)
    (done,) = completions(one.sends, 1)
    assert done.status in (REMOTE_ACCESS_ERROR, REMOTE_INVALID_REQUEST)


def test_unsignalled_requests_are_told_of_when_they_fail(rig: Rig) -> None:
    one, other = rig.pair()
    request(one, other, OP_WRITE, offset=-1).post(8)
    fails_with(one, REMOTE_ACCESS_ERROR)


def test_what_was_posted_behind_a_failure_is_flushed(rig: Rig) -> None:
    one, other = rig.pair()
    good, bad = request(one, other, OP_WRITE), request(one, other, OP_READ, offset=BYTES)
    good.set_id(5)
    good.post(8, SIGNALED)
    bad.post(8)
    # What overtakes a failing read may have arrived; it is flushed all the same.
    good.set_id(6)
    posted = 1
    try:
        for _ in range(4):
            good.post(8)
            posted += 1
    except verbs.VerbsError:
        pytest.fail("a post on a failed queue pair is flushed, not refused")
    done = completions(one.sends, posted + 1)
    statuses = [(one.wr_id, one.status) for one in done]
    assert statuses[:2] == [(5, SUCCESS), (1, REMOTE_ACCESS_ERROR)]
    assert statuses[2:] == [(6, FLUSHED)] * 4


def test_errors_of_one_pair_leave_the_others_alone(rig: Rig) -> None:
    one, other = rig.pair()
    bystander, _ = rig.pair()
    request(one, other, OP_READ, offset=-1).post(8, SIGNALED)
    fails_with(one, REMOTE_ACCESS_ERROR)
    assert bystander.pair.state == QP_READY_TO_SEND
    request(bystander, rig.ends[3], OP_WRITE).post(8, SIGNALED)
    completed(bystander.sends)


def test_to_error_flushes_receives_and_is_noticed_by_the_peer(rig: Rig) -> None:
    one, other = rig.pair(**QUICK)
    other.pair.prepare_receive(wr_id=40).post(3)
    other.pair.to_error()
    assert [(got.wr_id, got.status) for got in completions(other.receives, 3)] == [
        (40, FLUSHED)
    ] * 3
    request(one, other, OP_WRITE).post(8, SIGNALED)
    fails_with(one, RETRIES_EXCEEDED)


@pytest.mark.parametrize("opcode", [OP_WRITE, OP_READ, OP_WRITE_WITH_IMM])
def test_a_peer_that_is_gone(rig: Rig, opcode: int) -> None:
    one, other = rig.pair(**QUICK)
    other.pair.close()
    request(one, other, opcode).post(8, SIGNALED)
    fails_with(one, RETRIES_EXCEEDED)


@pytest.mark.parametrize("opcode", [OP_SEND, OP_WRITE_WITH_IMM])
def test_no_receive_is_posted(rig: Rig, opcode: int) -> None:
    one, other = rig.pair(rnr_retries=1)
    request(one, other, opcode).post(8, SIGNALED)
    fails_with(one, RNR_RETRIES_EXCEEDED)


def test_a_receive_that_comes_in_time(rig: Rig) -> None:
    one, other = rig.pair(rnr_retries=7)
    request(one, other, OP_WRITE_WITH_IMM).post(8, SIGNALED, 11)
    quiet(one.sends)
    other.pair.prepare_receive().post()
    assert completed(other.receives)[0].immediate == 11
    completed(one.sends)


def test_a_message_longer_than_its_receive(rig: Rig) -> None:
    one, other = rig.pair()
    other.pair.prepare_receive(other.area.region, address=other.area.address, length=4).post()
    request(one, other, OP_SEND).post(5, SIGNALED)
    # Soft-RoCE gives the second.
    fails_with(one, REMOTE_INVALID_REQUEST, REMOTE_OPERATION_ERROR)
    assert not completions(other.receives, 1)[0].ok
    assert not any(other.area.view)


def test_more_inline_data_than_was_asked_for(rig: Rig) -> None:
    one, other = rig.pair(verbs.QueuePairOptions(inline_bytes=128))
    write = request(one, other, OP_WRITE)
    write.post(128, INLINE | SIGNALED)
    completed(one.sends)
    with pytest.raises(verbs.VerbsError, match="inline"):
        write.post(one.pair.inline_bytes + 1, INLINE | SIGNALED)
    quiet(one.sends)


def test_posting_before_connecting(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    assert one.pair.state in (QP_RESET, QP_INIT)
    with pytest.raises(verbs.VerbsError):
        request(one, other, OP_WRITE).post(8, SIGNALED)


def test_receives_may_be_posted_before_connecting(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    other.pair.prepare_receive(wr_id=3).post(2)
    rig.connect(one, other)
    request(one, other, OP_WRITE_WITH_IMM).post(1, SIGNALED, 1)
    completed(one.sends)
    assert completed(other.receives)[0].wr_id == 3


def test_writing_to_one_that_connects_later(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    gid = rig.place.gid
    mine, theirs = one.pair.own_address(gid), other.pair.own_address(gid)
    one.pair.connect(theirs, verbs.agree(mine, theirs), gid=gid)
    one.area.view[:1] = b"x"
    request(one, other, OP_WRITE).post(1, SIGNALED)
    other.pair.connect(mine, verbs.agree(theirs, mine), gid=gid)
    completed(one.sends)
    until(lambda: other.area.view[0] == ord("x"))


def test_an_address_that_nobody_has_connects_and_then_fails(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    gid = rig.place.gid
    mine, theirs = one.pair.own_address(gid), other.pair.own_address(gid)
    nobody = verbs.QueuePairAddress(
        theirs.number ^ 0x3FF, theirs.psn, theirs.gid, 0, theirs.active_mtu, 1, 1
    )
    options = verbs.ConnectOptions(mtu=1, timeout=8, retries=1)
    one.pair.connect(nobody, options, gid=gid)
    assert mine.gid == gid.raw
    request(one, other, OP_WRITE).post(1, SIGNALED)
    fails_with(one, RETRIES_EXCEEDED)


def test_connecting_with_a_gid_that_is_not_there(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    gid = verbs.Gid(77, rig.place.gid.raw)
    theirs = other.pair.own_address(rig.place.gid)
    with pytest.raises(verbs.VerbsError, match="choose the GID again"):
        one.pair.connect(theirs, verbs.ConnectOptions(mtu=1), gid=gid)


def test_connecting_over_the_devices_limit_of_reads(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    theirs = other.pair.own_address(rig.place.gid)
    most = min(255, rig.device.limits.rd_atomic + 1)
    options = verbs.ConnectOptions(mtu=1, rd_atomic=most, dest_rd_atomic=most)
    with pytest.raises(verbs.VerbsError, match="depth of reads"):
        one.pair.connect(theirs, options, gid=rig.place.gid)


def test_connecting_from_ipv4_to_ipv6(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    theirs = other.pair.own_address(verbs.Gid(0, verbs.gid_of("fe80::1")))
    with pytest.raises(verbs.VerbsError, match="of one kind"):
        one.pair.connect(theirs, verbs.ConnectOptions(mtu=1), gid=rig.place.gid)


def test_more_than_a_device_has(rig: Rig) -> None:
    end = rig.end()
    depth = rig.device.limits.queue_depth + 1
    with pytest.raises(verbs.VerbsError, match=r"device\.limits"):
        end.domain.queue_pair(end.sends, end.receives, verbs.QueuePairOptions(send_depth=depth))
    with pytest.raises(verbs.VerbsError, match=r"device\.limits"):
        rig.device.completion_queue(rig.device.limits.completion_depth + 1)


def test_memory_that_is_not_there(rig: Rig) -> None:
    end = rig.end()
    with pytest.raises(verbs.VerbsError, match="register memory"):
        end.domain.register(end.area.address, 0, LOCAL_WRITE)
    with pytest.raises(verbs.VerbsError, match="register memory"):
        end.domain.register(end.area.address, 8, REMOTE_WRITE)
