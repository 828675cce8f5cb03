"""Devices, and the order in which what is made of them is closed."""

import ctypes
import gc
import logging
import mmap
import os
import warnings
import weakref

import pytest

from l5.rdma import verbs
from l5.rdma.verbs import OP_WRITE, QP_INIT, QP_RESET, SIGNALED

from ._rig import ALL_ACCESS, Rig, completed, rig_on

TURNS = 2000 if os.environ.get("SOFTROCE") else 4000


def test_what_a_device_says_of_itself(backend: verbs.Backend, rig: Rig) -> None:
    device, limits = rig.device, rig.device.limits
    assert device.name in backend.devices()
    assert limits.queue_depth >= 128 and limits.completion_depth >= 512 and limits.sges >= 1
    assert limits.rd_atomic >= 1 and limits.init_rd_atomic >= 1 and limits.ports >= 1
    assert limits.region_bytes >= 1 << 30
    assert limits.atomics in (verbs.ATOMIC_NONE, verbs.ATOMIC_DEVICE, verbs.ATOMIC_GLOBAL)
    port = rig.place.port
    assert port.active and port.active_mtu in verbs.MTU_BYTES
    assert port.link_layer in (verbs.LINK_ETHERNET, verbs.LINK_INFINIBAND)
    with pytest.raises(verbs.VerbsError):
        device.port(limits.ports + 1)


def test_the_gid_is_the_one_of_the_address(rig: Rig, address: str) -> None:
    gid = rig.place.gid
    assert gid in rig.device.gids() and gid.address == address
    own = rig.end().pair.own_address(gid)
    assert own.gid == gid.raw == verbs.gid_of(address)
    assert own.active_mtu == rig.place.port.active_mtu
    assert len({one.index for one in rig.device.gids()}) == len(rig.device.gids())


def test_no_such_device(backend: verbs.Backend) -> None:
    with pytest.raises(verbs.VerbsUnavailable, match="nosuch0") as caught:
        backend.open("nosuch0")
    assert caught.value.missing == "device"


def test_addresses_of_queue_pairs_differ(rig: Rig) -> None:
    gid = rig.place.gid
    own = [rig.end().pair.own_address(gid) for _ in range(4)]
    assert len({one.number for one in own}) == 4
    assert len({one.psn for one in own}) > 1
    assert rig.ends[0].pair.own_address(gid) == own[0]


def test_a_queue_pair_has_at_least_what_was_asked_for(rig: Rig) -> None:
    options = verbs.QueuePairOptions(send_depth=48, receive_depth=24, inline_bytes=100)
    pair = rig.end(options).pair
    assert (pair.send_depth, pair.receive_depth) == (48, 24) and pair.inline_bytes >= 100
    assert pair.state in (QP_RESET, QP_INIT)


def test_the_wrong_order_of_closing_is_refused_and_does_no_harm(rig: Rig) -> None:
    one, other = rig.pair()
    for resource, names in (
        (one.domain, "memory region, queue pair"),
        (one.sends, "queue pair"),
        (rig.device, "completion queue"),
    ):
        with pytest.raises(verbs.ResourceBusy, match=names):
            resource.close()
        assert not resource.closed
    write = one.pair.prepare(
        OP_WRITE,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
    )
    write.post(1, SIGNALED)
    completed(one.sends)


def test_closing_again_does_nothing_and_use_after_it_is_refused(rig: Rig) -> None:
    one, other = rig.pair()
    write = one.pair.prepare(
        OP_WRITE, one.area.region, address=one.area.address, rkey=other.area.region.rkey
    )
    receive = one.pair.prepare_receive()
    for _ in range(2):
        one.pair.close()
    assert one.pair.closed
    gid = rig.place.gid
    for call in (
        lambda: write.post(1),
        lambda: receive.post(),
        lambda: one.pair.state,
        one.pair.to_error,
        lambda: one.pair.connect(other.pair.own_address(gid), verbs.ConnectOptions(1), gid=gid),
    ):
        with pytest.raises(verbs.ResourceClosed, match="closed"):
            call()
    one.sends.close()
    with pytest.raises(verbs.ResourceClosed):
        one.sends.poll()
    one.area.close()
    one.domain.close()
    for call in (
        lambda: one.domain.register(other.area.address, 8, 1),
        lambda: one.domain.queue_pair(other.sends, other.receives, verbs.QueuePairOptions()),
    ):
        with pytest.raises(verbs.ResourceClosed, match="protection domain"):
            call()


def test_a_region_keeps_its_memory_alive_until_it_is_closed(rig: Rig) -> None:
    end = rig.end()
    buffer = (ctypes.c_char * 4096)()
    alive = weakref.ref(buffer)
    region = end.domain.register(ctypes.addressof(buffer), 4096, ALL_ACCESS, owner=buffer)
    del buffer
    gc.collect()
    assert alive() is not None
    region.close()
    gc.collect()
    assert alive() is None


def test_memory_of_every_kind_can_be_registered(rig: Rig) -> None:
    end = rig.end()
    one_byte = bytearray(1)
    odd = bytearray(64)
    fd = os.memfd_create("contract")
    os.ftruncate(fd, 4096)
    shared = mmap.mmap(fd, 4096)
    os.close(fd)
    view = memoryview(shared)
    for address, length in (
        (verbs.address_of(one_byte), 1),
        (verbs.address_of(odd) + 3, 61),
        (verbs.address_of(view), 4096),
    ):
        region = end.domain.register(address, length, ALL_ACCESS, owner=(one_byte, odd, view))
        assert (region.address, region.length, region.access) == (address, length, ALL_ACCESS)
        assert region.rkey and region.lkey
        region.close()
    view.release()
    shared.close()


def test_devices_are_opened_and_closed_again_and_again(
    backend: verbs.Backend, address: str
) -> None:
    for _ in range(5):
        with rig_on(backend, backend.devices()[0], address) as rig:
            one, other = rig.pair(events=True)
            one.sends.arm()
            one.pair.prepare(
                OP_WRITE,
                one.area.region,
                address=one.area.address,
                remote_address=other.area.address,
                rkey=other.area.region.rkey,
            ).post(1, SIGNALED)
            completed(one.sends)


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]


def heap_bytes() -> int:
    """Ask malloc how much is in use. (Python's own objects are elsewhere.)"""
    gc.collect()
    try:
        function = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    function.restype = Mallinfo2
    info = function()
    return info.h + info.b


def test_requests_that_are_dropped_leave_nothing_behind(rig: Rig) -> None:
    one, other = rig.pair()

    def prepare_all() -> None:
        row = one.pair.prepare(OP_WRITE, one.area.region, rkey=other.area.region.rkey)
        one.pair.prepare_pair(row, one.pair.prepare(OP_WRITE, one.area.region))
        one.pair.prepare_reads(one.area.region, rkey=1, count_max=4)
        one.pair.prepare_receive()
        one.pair.prepare_atomic(verbs.OP_FETCH_AND_ADD, one.area.region, address=0, rkey=1)

    for _ in range(50):
        prepare_all()
    before = heap_bytes()
    for _ in range(TURNS // 5):
        prepare_all()
    assert heap_bytes() - before < 32 * TURNS


def test_posting_and_polling_leaves_nothing_behind(rig: Rig) -> None:
    one, other = rig.pair()
    write = one.pair.prepare(
        OP_WRITE,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
    )

    def post_all(turns: int) -> None:
        for _ in range(turns):
            write.post(8, SIGNALED)
            completed(one.sends)

    post_all(100)
    before = heap_bytes()
    post_all(TURNS // 4)
    assert heap_bytes() - before < 32 * TURNS // 4


def test_a_forked_child_can_use_none_of_it_and_the_parent_all(rig: Rig) -> None:
    one, other = rig.pair()
    write = one.pair.prepare(
        OP_WRITE,
        one.area.region,
        address=one.area.address,
        remote_address=other.area.address,
        rkey=other.area.region.rkey,
    )
    slots = verbs.SendSlots(16)
    with warnings.catch_warnings():  # of threads, which the simulated device has
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            slots.take,
            one.sends.poll,
            lambda: one.pair.state,
            lambda: one.domain.register(one.area.address, 8, 1),
            rig.device.protection_domain,
        ):
            try:
                call()
            except verbs.ResourceClosed as error:
                refused += "forked" in str(error)
        rig.close()  # does nothing here
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    write.post(8, slots.take(1, SIGNALED))
    completed(one.sends)


def test_logging_is_left_as_it_was(backend: verbs.Backend, rig: Rig) -> None:
    assert rig.device.name in backend.devices()
    mine = [one for one in logging.root.handlers if type(one).__module__ == "logging"]
    assert mine == []
