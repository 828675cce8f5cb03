"""The simulated device is stricter than Soft-RoCE: what hardware refuses, it refuses."""

import ctypes
import errno
import struct
import threading
from collections.abc import Iterator

import pytest

from l5.rdma import _simulated, verbs
from l5.rdma._simulated import Fabric, SimulatedBackend, hostile, kind
from l5.rdma.verbs import (
    FENCE,
    OP_READ,
    OP_SEND,
    OP_WRITE,
    OP_WRITE_WITH_IMM,
    PORT_DOWN,
    QP_ERROR,
    REMOTE_INVALID_REQUEST,
    RETRIES_EXCEEDED,
    SIGNALED,
    QueuePairOptions,
)
from tests.rdma.contract._rig import (
    End,
    Rig,
    completed,
    completions,
    quiet,
    rig_on,
    until,
)


@pytest.fixture
def fabric() -> Fabric:
    fabric = Fabric(kind())
    fabric.add_device("sim0", "127.0.0.1")
    return fabric


@pytest.fixture
def rig(fabric: Fabric) -> Iterator[Rig]:
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as one:
        yield one


def request(one: End, other: End, opcode: int = OP_WRITE, wr_id: int = 0) -> verbs.SendRequest:
    return one.pair.prepare(
        opcode,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
        wr_id=wr_id,
    )


# -- slots


def test_slots_are_free_when_a_later_completion_was_polled_and_not_before(rig: Rig) -> None:
    one, other = rig.pair(QueuePairOptions(send_depth=8))
    write = request(one, other)
    for index in range(8):
        write.post(1, SIGNALED if index in (3, 7) else 0)
    # All of them have arrived; Soft-RoCE would have room again.
    with pytest.raises(verbs.SendQueueFull) as full:
        write.post(1)
    assert full.value.errno == errno.ENOMEM
    assert len(one.sends.poll(1)) == 1
    for _ in range(4):
        write.post(1)
    with pytest.raises(verbs.SendQueueFull):
        write.post(1)


def test_a_queue_without_signals_never_has_room_again(rig: Rig) -> None:
    one, other = rig.pair(QueuePairOptions(send_depth=4))
    for _ in range(4):
        request(one, other).post(1)
    quiet(one.sends)
    with pytest.raises(verbs.SendQueueFull, match="poll the completion queue"):
        request(one, other).post(1, SIGNALED)


def test_a_batch_is_posted_whole_or_not_at_all(rig: Rig) -> None:
    one, other = rig.pair(QueuePairOptions(send_depth=4))
    batch = one.pair.prepare_reads(one.area.region, rkey=other.area.region.rkey, count_max=5)
    with pytest.raises(verbs.SendQueueFull):
        batch.post([(one.area.address, other.area.address, 8)] * 5)
    quiet(one.sends)
    batch.post([(one.area.address, other.area.address, 8)] * 4)
    completed(one.sends)


def test_receives_take_slots_until_they_were_polled(rig: Rig) -> None:
    one, other = rig.pair(QueuePairOptions(receive_depth=2))
    receive = other.pair.prepare_receive()
    receive.post(2)
    for _ in range(2):
        request(one, other, OP_WRITE_WITH_IMM).post(0)
    with pytest.raises(verbs.VerbsError, match="post a receive"):
        receive.post()
    completed(other.receives, 1)
    receive.post()
    with pytest.raises(verbs.VerbsError, match="post a receive"):
        receive.post()


def test_a_completion_queue_that_overran_stays_broken(rig: Rig) -> None:
    one, other = rig.end(QueuePairOptions(send_depth=8), depth=2), rig.end()
    rig.connect(one, other)
    for _ in range(3):
        request(one, other).post(1, SIGNALED)
    for _ in range(2):
        with pytest.raises(verbs.VerbsError, match="overran"):
            one.sends.poll()


# -- what is agreed when connecting


def test_a_path_mtu_over_the_ports_is_refused(rig: Rig, fabric: Fabric) -> None:
    fabric.ports["sim0"].active_mtu = 3
    one, other = rig.end(), rig.end()
    theirs = other.pair.own_address(rig.place.gid)
    with pytest.raises(verbs.VerbsError, match="MTU"):
        one.pair.connect(theirs, verbs.ConnectOptions(mtu=4), gid=rig.place.gid)
    one.pair.connect(theirs, verbs.ConnectOptions(mtu=3), gid=rig.place.gid)
    with pytest.raises(verbs.VerbsError):
        one.pair.connect(theirs, verbs.ConnectOptions(mtu=3), gid=rig.place.gid)


def test_ends_that_agreed_on_different_mtus_fail_with_the_first_long_packet(rig: Rig) -> None:
    one, other = rig.end(), rig.end()
    gid = rig.place.gid
    mine, theirs = one.pair.own_address(gid), other.pair.own_address(gid)
    one.pair.connect(theirs, verbs.ConnectOptions(mtu=5), gid=gid)
    other.pair.connect(mine, verbs.ConnectOptions(mtu=3), gid=gid)
    request(one, other).post(1024, SIGNALED)
    completed(one.sends)
    request(one, other).post(1025, SIGNALED)
    assert completions(one.sends, 1)[0].status == REMOTE_INVALID_REQUEST


def test_more_reads_than_the_other_end_answers(fabric: Fabric) -> None:
    fabric.plan = hostile(1)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.end(), rig.end()
        gid = rig.place.gid
        mine, theirs = one.pair.own_address(gid), other.pair.own_address(gid)
        one.pair.connect(theirs, verbs.ConnectOptions(mtu=5, rd_atomic=8), gid=gid)
        other.pair.connect(mine, verbs.ConnectOptions(mtu=5, dest_rd_atomic=2), gid=gid)
        rkey = other.area.region.rkey
        batch = one.pair.prepare_reads(one.area.region, rkey=rkey, count_max=64)
        batch.post([(one.area.address, other.area.address, 64)] * 64)
        statuses: list[int] = []
        until(lambda: bool(statuses.extend(done.status for done in one.sends.poll()) or statuses))
        assert statuses[0] == REMOTE_INVALID_REQUEST


def test_what_may_be_locked_is_bounded_and_the_error_says_how_to_raise_it(
    rig: Rig, fabric: Fabric
) -> None:
    end = rig.end()
    fabric.ports["sim0"].locked_bytes_max = fabric.ports["sim0"].locked_bytes + 4096
    with end.domain.register(end.area.address, 4096, 1):
        with pytest.raises(verbs.MemoryLockLimit, match="ulimit -l") as refused:
            end.domain.register(end.area.address, 1, 1)
    assert "LimitMEMLOCK" in refused.value.advice
    end.domain.register(end.area.address, 1, 1).close()


# -- faults


def test_a_link_that_comes_back_in_time_is_not_noticed(rig: Rig, fabric: Fabric) -> None:
    one, other = rig.pair(timeout=20)
    fabric.set_link("sim0", False)
    assert rig.device.port().state == PORT_DOWN
    one.area.view[:4] = b"late"
    request(one, other).post(4, SIGNALED)
    quiet(one.sends)
    assert not any(other.area.view[:4])
    fabric.set_link("sim0", True)
    completed(one.sends)
    assert bytes(other.area.view[:4]) == b"late"


def test_a_link_that_stays_down_is_the_end_of_the_connection(rig: Rig, fabric: Fabric) -> None:
    one, other = rig.pair(timeout=20)
    fabric.set_link("sim0", False)
    request(one, other, wr_id=3).post(1)
    quiet(one.sends)
    fabric.expire()
    (done,) = completions(one.sends, 1)
    assert (done.wr_id, done.status) == (3, RETRIES_EXCEEDED)
    assert one.pair.state == QP_ERROR != other.pair.state


def test_a_queue_pair_that_is_killed(rig: Rig, fabric: Fabric) -> None:
    one, other = rig.pair(timeout=8)
    fabric.kill(other.pair.number)
    request(one, other).post(1, SIGNALED)
    assert completions(one.sends, 1)[0].status == RETRIES_EXCEEDED


def test_two_devices_on_one_fabric(fabric: Fabric) -> None:
    fabric.add_device("sim1", "10.0.0.2", active_mtu=3)
    backend = SimulatedBackend(fabric)
    with (
        rig_on(backend, "sim0", "127.0.0.1") as here,
        rig_on(backend, "sim1", "10.0.0.2") as there,
    ):
        one, other = here.end(), there.end()
        mine = one.pair.own_address(here.place.gid)
        theirs = other.pair.own_address(there.place.gid)
        one.pair.connect(theirs, verbs.agree(mine, theirs), gid=here.place.gid)
        other.pair.connect(mine, verbs.agree(theirs, mine), gid=there.place.gid)
        one.area.view[:5000] = b"z" * 5000
        before = fabric.packets
        request(one, other).post(5000, SIGNALED)
        completed(one.sends)
        assert fabric.packets - before == 5  # of 1024 bytes
        assert bytes(other.area.view[:5001]) == b"z" * 5000 + b"\0"


def test_what_was_acknowledged_has_landed_when_memory_is_deregistered(fabric: Fabric) -> None:
    fabric.plan = hostile(3)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.pair()
        extra = other.domain.register(other.area.address, 4096, 7, owner=other.area.view)
        write = request(one, other)
        write.place(one.area.address, extra.address, extra.rkey)
        one.area.view[:4096] = b"q" * 4096
        write.post(4096, SIGNALED)
        completed(one.sends)
        extra.close()
        assert bytes(other.area.view[:4096]) == b"q" * 4096
        other.area.view[:4096] = bytes(4096)
        quiet(one.sends)
        assert not any(other.area.view[:4096])


# -- what may surprise


def test_a_source_that_is_reused_too_early_is_seen(fabric: Fabric) -> None:
    fabric.plan = hostile(7)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.pair()
        wrong = 0
        for turn in range(1, 40):
            one.area.view[:8] = struct.pack("<Q", turn)
            request(one, other).post(8, SIGNALED)
            one.area.view[:8] = struct.pack("<Q", 999)  # before its completion was polled
            completed(one.sends)
            until(lambda: any(other.area.view[:8]))
            wrong += struct.unpack_from("<Q", other.area.view) == (999,)
            other.area.view[:8] = bytes(8)
        assert wrong > 0


def test_a_completion_may_come_before_the_bytes(fabric: Fabric) -> None:
    fabric.plan = hostile(11)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.pair()
        early = 0
        for turn in range(1, 60):
            one.area.view[:200] = bytes([turn]) * 200
            request(one, other).post(200, SIGNALED)
            completed(one.sends)
            early += bytes(other.area.view[:200]) != bytes([turn]) * 200
            until(lambda turn=turn: bytes(other.area.view[:200]) == bytes([turn]) * 200)
        assert early > 0


@pytest.mark.parametrize("fence", [0, FENCE])
def test_a_write_overtakes_a_read_unless_it_is_fenced(fabric: Fabric, fence: int) -> None:
    fabric.plan = hostile(13)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.pair()
        read, write = request(one, other, OP_READ), request(one, other)
        read.place(one.area.address + 512, other.area.address)
        overtaken = 0
        for turn in range(1, 60):
            other.area.view[:8] = bytes(8)
            one.area.view[:8] = struct.pack("<Q", turn)
            read.post(8)
            write.post(8, SIGNALED | fence)
            completed(one.sends)
            overtaken += struct.unpack_from("<Q", one.area.view, 512) == (turn,)
            until(lambda turn=turn: struct.unpack_from("<Q", other.area.view) == (turn,))
        assert (overtaken > 0) == (not fence)


def test_a_read_is_torn_by_a_writer_that_never_rests(fabric: Fabric) -> None:
    fabric.plan = hostile(17)
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        one, other = rig.pair()
        stop = threading.Event()
        words = (ctypes.c_uint64 * 128).from_address(other.area.address)

        def write_all() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                for index in range(128):
                    words[index] = turn

        writer = threading.Thread(target=write_all)
        writer.start()
        try:
            read = request(one, other, OP_READ)
            torn = 0
            for _ in range(300):
                read.post(1024, SIGNALED)
                completed(one.sends)
                torn += len(set(struct.unpack_from("<128Q", one.area.view))) > 1
        finally:
            stop.set()
            writer.join()
        assert torn > 0


def test_an_atomic_is_not_atomic_with_the_processor() -> None:
    """Every order of one fetch-and-add and one addition by the owner: in some, one is lost."""
    results: set[int] = set()

    def scenario(fabric: Fabric) -> None:
        fabric.add_device("sim0", "127.0.0.1")
        with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
            one, other = rig.pair()
            word = ctypes.c_uint64.from_buffer(other.area.view)
            atomic = one.pair.prepare_atomic(
                verbs.OP_FETCH_AND_ADD,
                one.area.region,
                address=one.area.address,
                rkey=other.area.region.rkey,
            )
            atomic.post(other.area.address, 10)
            added = False
            while True:
                if not added and fabric.plan.choose(2):
                    word.value += 1
                    added = True
                if not fabric.step():
                    break
            results.add(word.value if added else -1)
            del word

    assert _simulated.explore(scenario) > 3
    assert results == {-1, 10, 11}


def test_sends_of_a_thread_that_closes_the_device_leave_no_thread(fabric: Fabric) -> None:
    fabric.plan = hostile(1)
    before = threading.active_count()
    for _ in range(3):
        with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
            one, other = rig.pair()
            request(one, other, OP_SEND).post(4)
            request(one, other).post(4)
    assert threading.active_count() == before


def test_the_process_has_a_fabric_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_simulated, "_DEFAULT", [])
    monkeypatch.setenv("L5_SIMULATED", "hostile:12")
    backend = _simulated.backend()
    assert _simulated.backend() is backend and backend.devices() == ("sim0",)
    assert not backend.fabric.plan.immediate and backend.fabric.plan.ordered
    for text in ("hostile", "hostile:x", "rude:1"):
        monkeypatch.setattr(_simulated, "_DEFAULT", [])
        monkeypatch.setenv("L5_SIMULATED", text)
        with pytest.raises(ValueError, match="hostile:SEED"):
            _simulated.backend()
