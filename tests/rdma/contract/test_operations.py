"""Every operation, on every backend."""

import struct

import pytest

from l5.rdma import verbs
from l5.rdma.verbs import (
    INLINE,
    OP_COMPARE_AND_SWAP,
    OP_FETCH_AND_ADD,
    OP_READ,
    OP_SEND,
    OP_SEND_WITH_IMM,
    OP_WRITE,
    OP_WRITE_WITH_IMM,
    SIGNALED,
    WC_COMPARE_AND_SWAP,
    WC_FETCH_AND_ADD,
    WC_READ,
    WC_RECEIVE,
    WC_RECEIVE_WITH_IMM,
    WC_SEND,
    WC_WRITE,
)

from ._rig import End, Rig, completed, quiet, until


def write_to(one: End, other: End, opcode: int = OP_WRITE, wr_id: int = 7) -> verbs.SendRequest:
    return one.pair.prepare(
        opcode,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
        wr_id=wr_id,
    )


def test_a_write_arrives_and_completes(rig: Rig) -> None:
    one, other = rig.pair()
    one.area.view[:11] = b"hello world"
    write_to(one, other).post(11, SIGNALED)
    (done,) = completed(one.sends)
    assert (done.wr_id, done.opcode, done.qp_number) == (7, WC_WRITE, one.pair.number)
    assert done.immediate is None
    until(lambda: other.area.view[:12] == b"hello world\0")
    quiet(one.sends, other.receives)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 4096, 4097, 60_000])
def test_a_write_of_any_length_writes_that_and_no_more(rig: Rig, length: int) -> None:
    one, other = rig.pair()
    data = bytes(index * 31 % 255 + 1 for index in range(length))
    one.area.view[64 : 64 + length] = data
    request = write_to(one, other)
    request.place(one.area.address + 64, other.area.address + 128)
    request.post(length, SIGNALED)
    completed(one.sends)
    until(lambda: bytes(other.area.view[128 : 128 + length]) == data)
    assert not any(other.area.view[:128]) and not any(other.area.view[128 + length :])


def test_a_request_is_changed_and_posted_again(rig: Rig) -> None:
    one, other = rig.pair()
    one.area.view[:6] = b"abcdef"
    request = write_to(one, other)
    request.post(1, SIGNALED)
    request.set_id(8)
    request.post_at(one.area.address + 1, other.area.address + 10, 2, SIGNALED)
    request.set_id(9)
    request.place(one.area.address + 3, other.area.address + 20)
    request.post(3, SIGNALED)
    assert [done.wr_id for done in completed(one.sends, 3)] == [7, 8, 9]
    until(lambda: bytes(other.area.view[:24]) == b"a" + b"\0" * 9 + b"bc" + b"\0" * 8 + b"def\0")


def test_a_request_can_be_pointed_at_other_memory(rig: Rig) -> None:
    one, other = rig.pair()
    second = other.domain.register(other.area.address + 4096, 8, 3, owner=other.area.view)
    one.area.view[:1] = b"x"
    request = write_to(one, other)
    request.place(one.area.address, second.address + 7, second.rkey)
    request.post(1, SIGNALED)
    completed(one.sends)
    until(lambda: other.area.view[4096 + 7] == ord("x"))
    second.close()


def test_an_inline_source_may_be_overwritten_at_once(rig: Rig) -> None:
    one, other = rig.pair(verbs.QueuePairOptions(inline_bytes=64))
    assert one.pair.inline_bytes >= 64
    request = write_to(one, other)
    for index in range(16):
        one.area.view[:64] = bytes([index + 1]) * 64
        request.post_at(one.area.address, other.area.address + 64 * index, 64, INLINE | SIGNALED)
        one.area.view[:64] = b"\xff" * 64
    completed(one.sends, 16)
    expected = b"".join(bytes([index + 1]) * 64 for index in range(16))
    until(lambda: bytes(other.area.view[:1024]) == expected)


def test_a_send_fills_a_receive(rig: Rig) -> None:
    one, other = rig.pair()
    receive = other.pair.prepare_receive(
        other.area.region, address=other.area.address + 100, length=50, wr_id=21
    )
    receive.post()
    one.area.view[:4] = b"send"
    write_to(one, other, OP_SEND).post(4, SIGNALED)
    assert completed(one.sends)[0].opcode == WC_SEND
    (got,) = completed(other.receives)
    assert (got.wr_id, got.opcode, got.byte_length) == (21, WC_RECEIVE, 4)
    assert got.immediate is None
    assert bytes(other.area.view[100:105]) == b"send\0"


def test_immediates_arrive_as_the_integers_they_were(rig: Rig) -> None:
    one, other = rig.pair()
    receive = other.pair.prepare_receive(
        other.area.region, address=other.area.address + 100, length=50, wr_id=1
    )
    receive.post(2)
    one.area.view[:3] = b"imm"
    send = write_to(one, other, OP_SEND_WITH_IMM)
    send.post(3, SIGNALED, 0x01020304)
    write = write_to(one, other, OP_WRITE_WITH_IMM)
    write.post(3, SIGNALED, 0xFFFFFFFE)
    completed(one.sends, 2)
    first, second = completed(other.receives, 2)
    assert (first.opcode, first.immediate, first.byte_length) == (WC_RECEIVE, 0x01020304, 3)
    assert (second.opcode, second.immediate) == (WC_RECEIVE_WITH_IMM, 0xFFFFFFFE)
    # What a receive's completion announces is there: no waiting.
    assert bytes(other.area.view[:4]) == b"imm\0"
    assert bytes(other.area.view[100:104]) == b"imm\0"


def test_a_receive_without_memory_takes_immediates_many_at_once(rig: Rig) -> None:
    one, other = rig.pair()
    other.pair.prepare_receive(wr_id=5).post(16)
    request = write_to(one, other, OP_WRITE_WITH_IMM)
    for index in range(16):
        request.post(index % 3, SIGNALED if index == 15 else 0, index)
    completed(one.sends)
    got = completed(other.receives, 16)
    assert [(one.wr_id, one.immediate) for one in got] == [(5, index) for index in range(16)]


def test_receives_can_be_placed_each_elsewhere(rig: Rig) -> None:
    one, other = rig.pair()
    receive = other.pair.prepare_receive(other.area.region)
    for index in range(3):
        receive.place(other.area.address + 10 * index, 10, 30 + index)
        receive.post()
    send = write_to(one, other, OP_SEND)
    for index in range(3):
        one.area.view[index] = index + 1
        send.post_at(one.area.address + index, 0, 1)
    assert [got.wr_id for got in completed(other.receives, 3)] == [30, 31, 32]
    assert [other.area.view[10 * index] for index in range(3)] == [1, 2, 3]


def test_a_read_fetches(rig: Rig) -> None:
    one, other = rig.pair()
    other.area.view[8192 : 8192 + 26] = b"abcdefghijklmnopqrstuvwxyz"
    request = write_to(one, other, OP_READ)
    request.post_at(one.area.address + 1024, other.area.address + 8192, 26, SIGNALED)
    (done,) = completed(one.sends)
    assert (done.opcode, done.byte_length) == (WC_READ, 26)
    assert bytes(one.area.view[1024:1051]) == b"abcdefghijklmnopqrstuvwxyz\0"


def test_a_batch_of_reads_has_one_completion(rig: Rig) -> None:
    one, other = rig.pair()
    other.area.view[: 40 * 64] = bytes(index % 251 for index in range(40 * 64))
    batch = one.pair.prepare_reads(one.area.region, rkey=other.area.region.rkey, count_max=40)
    assert batch.count_max == 40
    # More than can be outstanding at once: the others wait in the queue.
    reads = [
        (one.area.address + 64 * index, other.area.address + 64 * (39 - index), 64 - index)
        for index in range(40)
    ]
    batch.post(reads, wr_id=99)
    (done,) = completed(one.sends)
    assert (done.wr_id, done.opcode, done.byte_length) == (99, WC_READ, 25)
    for index in range(40):
        source = 64 * (39 - index)
        got = bytes(one.area.view[64 * index : 64 * index + 64 - index])
        assert got == bytes(other.area.view[source : source + 64 - index])
    quiet(one.sends)


def test_a_batch_can_be_posted_again_and_be_smaller(rig: Rig) -> None:
    one, other = rig.pair()
    batch = one.pair.prepare_reads(one.area.region, rkey=other.area.region.rkey, count_max=4)
    for turn in range(1, 5):
        other.area.view[:8] = struct.pack("<Q", turn)
        batch.post([(one.area.address + 8 * index, other.area.address, 8) for index in range(turn)])
        completed(one.sends)
        assert struct.unpack_from(f"<{turn}Q", one.area.view) == (turn,) * turn
    for count in (0, 5):
        with pytest.raises(ValueError, match="1 to 4 reads"):
            batch.post([(one.area.address, other.area.address, 8)] * count)
    quiet(one.sends)


def test_reads_see_what_was_written_before_them(rig: Rig) -> None:
    one, other = rig.pair()
    write, read = write_to(one, other), write_to(one, other, OP_READ)
    read.place(one.area.address + 512, other.area.address)
    for turn in range(20):
        one.area.view[:8] = struct.pack("<Q", turn)
        write.post(8, INLINE)
        read.post(8, SIGNALED)
        completed(one.sends)
        assert struct.unpack_from("<Q", one.area.view, 512) == (turn,)


def test_compare_and_swap_hits_and_misses(rig: Rig) -> None:
    one, other = rig.pair()
    struct.pack_into("<Q", other.area.view, 4096, 15)
    atomic = one.pair.prepare_atomic(
        OP_COMPARE_AND_SWAP,
        one.area.region,
        address=one.area.address + 8,
        rkey=other.area.region.rkey,
    )
    atomic.post(other.area.address + 4096, 15, 2**63 + 1, wr_id=3)
    (done,) = completed(one.sends)
    assert (done.wr_id, done.opcode, done.byte_length) == (3, WC_COMPARE_AND_SWAP, 8)
    assert struct.unpack_from("<Q", one.area.view, 8) == (15,)
    assert struct.unpack_from("<Q", other.area.view, 4096) == (2**63 + 1,)
    atomic.post(other.area.address + 4096, 15, 1)
    completed(one.sends)
    assert struct.unpack_from("<Q", one.area.view, 8) == (2**63 + 1,)
    assert struct.unpack_from("<Q", other.area.view, 4096) == (2**63 + 1,)


def test_fetch_and_add_adds_and_wraps_around(rig: Rig) -> None:
    one, other = rig.pair()
    struct.pack_into("<Q", other.area.view, 4096, 2**64 - 3)
    atomic = one.pair.prepare_atomic(
        OP_FETCH_AND_ADD, one.area.region, address=one.area.address, rkey=other.area.region.rkey
    )
    for expected in (2**64 - 3, 2**64 - 1, 1, 3):
        atomic.post(other.area.address + 4096, 2)
        assert completed(one.sends)[0].opcode == WC_FETCH_AND_ADD
        assert struct.unpack_from("<Q", one.area.view) == (expected,)


def test_atomics_are_atomic_among_each_other(rig: Rig) -> None:
    # Both add to the same word, through two registrations of it in two protection domains.
    word = rig.end().area
    requests: list[verbs.AtomicRequest] = []
    regions: list[verbs.MemoryRegion] = []
    clients: list[End] = []
    for _ in range(2):
        client, server = rig.pair()
        clients.append(client)
        region = server.domain.register(word.address, 8, 15, owner=word.view)
        regions.append(region)
        requests.append(
            client.pair.prepare_atomic(
                OP_FETCH_AND_ADD,
                client.area.region,
                address=client.area.address,
                rkey=region.rkey,
            )
        )
    for _ in range(50):
        for request in requests:
            request.post(word.address, 1)
    for client in clients:
        completed(client.sends, 50)
    assert struct.unpack_from("<Q", word.view) == (100,)
    for region in regions:
        region.close()


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_a_misaligned_atomic_is_refused_before_it_is_posted(rig: Rig, offset: int) -> None:
    one, other = rig.pair()
    atomic = one.pair.prepare_atomic(
        OP_FETCH_AND_ADD, one.area.region, address=one.area.address, rkey=other.area.region.rkey
    )
    with pytest.raises(ValueError, match="multiple of 8"):
        atomic.post(other.area.address + offset, 1)
    atomic.post(other.area.address, 1)
    completed(one.sends)


@pytest.mark.parametrize("chained", [False, True])
def test_a_row_and_its_flag_go_by_one_call(rig: Rig, chained: bool) -> None:
    one, other = rig.pair()
    rkey = other.area.region.rkey
    row = write_to(one, other)
    flag = one.pair.prepare(
        OP_WRITE,
        one.area.region,
        address=one.area.address + 4096,
        remote_address=other.area.address + 4096,
        rkey=rkey,
        wr_id=77,
    )
    both = one.pair.prepare_pair(row, flag, chained=chained)
    one.area.view[4096] = 1
    for length in (5, 3, 100):
        one.area.view[:length] = bytes([length]) * length
        both.post(length, 0, SIGNALED | INLINE)
        assert completed(one.sends)[0].wr_id == 77
        until(lambda: other.area.view[4096] == 1)
        until(lambda length=length: bytes(other.area.view[:length]) == bytes([length]) * length)
        other.area.view[4096] = 0
    row.place(one.area.address + 50, other.area.address + 8000)
    both.post(20, 0, SIGNALED | INLINE)
    completed(one.sends)
    until(lambda: bytes(other.area.view[8000:8021]) == b"\x64" * 20 + b"\0")


def test_a_flag_with_immediate_wakes_and_follows_its_row(rig: Rig) -> None:
    one, other = rig.pair()
    row, flag = write_to(one, other), write_to(one, other, OP_WRITE_WITH_IMM, wr_id=5)
    flag.place(one.area.address + 4096, other.area.address + 4096)
    one.area.view[4096] = 1
    both = one.pair.prepare_pair(row, flag)
    receive = other.pair.prepare_receive()
    for turn in range(10):
        receive.post()
        one.area.view[:40] = bytes([turn + 1]) * 40
        both.post(40, INLINE, SIGNALED | INLINE, turn)
        (got,) = completed(other.receives)
        assert got.immediate == turn
        assert bytes(other.area.view[:40]) == bytes([turn + 1]) * 40 and other.area.view[4096] == 1
        other.area.view[4096] = 0
        completed(one.sends)
