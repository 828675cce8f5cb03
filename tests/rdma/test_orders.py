"""Every order of delivery of one and two messages, and what each assumption about order is worth.

What is assumed here is what the mailbox relies on. Where the fabric is made to promise less
(`ordered=False`: what the standard promises), the same checks find the orders that break them; so
these tests can fail.
"""

import struct
from collections.abc import Callable

import pytest

from l5.rdma._simulated import Fabric, SimulatedBackend, explore
from l5.rdma.verbs import INLINE, OP_WRITE, OP_WRITE_WITH_IMM, SIGNALED, SendRequest
from tests.rdma.contract._rig import End, Rig, rig_on

ROW, FLAG = 0, 4096


def on_each_order(
    scenario: Callable[[Fabric, Rig], None], *, ordered: bool = True, cut_bytes: int = 8
) -> int:
    def run(fabric: Fabric) -> None:
        fabric.add_device("sim0", "127.0.0.1")
        with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
            scenario(fabric, rig)

    return explore(run, ordered=ordered, cut_bytes=cut_bytes)


def write(one: End, other: End, offset: int, opcode: int = OP_WRITE) -> SendRequest:
    return one.pair.prepare(
        opcode,
        one.area.region,
        address=one.area.address + offset,
        remote_address=other.area.address + offset,
        rkey=other.area.region.rkey,
    )


def flag_then_row(fabric: Fabric, rig: Rig) -> None:
    """Send a row and its flag; whenever the flag is there, so is the row."""
    one, other = rig.pair()
    one.area.view[ROW : ROW + 20] = b"a message of 20 byte"
    one.area.view[FLAG] = 1
    both = one.pair.prepare_pair(write(one, other, ROW), write(one, other, FLAG))
    both.post(20, INLINE, INLINE | SIGNALED)
    while fabric.step():
        if other.area.view[FLAG]:
            assert bytes(other.area.view[ROW : ROW + 20]) == b"a message of 20 byte", "torn"
    assert other.area.view[FLAG] == 1 and len(one.sends.poll()) == 1


def size_payload_ok(fabric: Fabric, rig: Rig) -> None:
    """Send [size][payload][OK] as one write; whenever OK is there, so is all before it."""
    one, other = rig.pair()
    message = struct.pack("<I", 13) + b"payload of 13" + b"\1"
    one.area.view[: len(message)] = message
    write(one, other, ROW).post(len(message), INLINE)
    while fabric.step():
        size = struct.unpack_from("<I", other.area.view)[0]
        if size and other.area.view[4 + size] == 1:
            assert bytes(other.area.view[: len(message)]) == message, "torn"
    assert bytes(other.area.view[: len(message)]) == message


def immediate_after_row(fabric: Fabric, rig: Rig) -> None:
    """Send a row, an immediate behind it; the receiver's completion means that both are there."""
    one, other = rig.pair()
    other.pair.prepare_receive().post(2)
    one.area.view[ROW : ROW + 20] = b"a message of 20 byte"
    one.area.view[FLAG] = 1
    flag = write(one, other, FLAG, OP_WRITE_WITH_IMM)
    one.pair.prepare_pair(write(one, other, ROW), flag).post(20, INLINE, INLINE, 5)
    seen = False
    while fabric.step():
        for got in other.receives.poll():
            assert got.ok and got.immediate == 5
            seen = True
            assert bytes(other.area.view[ROW : ROW + 20]) == b"a message of 20 byte", "torn"
            assert other.area.view[FLAG] == 1
    assert seen


def two_messages(fabric: Fabric, rig: Rig) -> None:
    """Two clients write their rows and flags at once: each flag stands for its own row."""
    ends = [rig.pair() for _ in range(2)]
    for index, (one, other) in enumerate(ends):
        one.area.view[ROW] = index + 1
        one.area.view[FLAG] = 1
        both = one.pair.prepare_pair(write(one, other, ROW), write(one, other, FLAG))
        both.post(1, INLINE, INLINE)
    while fabric.step():
        for index, (_, other) in enumerate(ends):
            if other.area.view[FLAG]:
                assert other.area.view[ROW] == index + 1, "torn"


def two_in_a_row(fabric: Fabric, rig: Rig) -> None:
    """One client writes again when its first message was consumed: the second is whole, too."""
    one, other = rig.pair()
    both = one.pair.prepare_pair(write(one, other, ROW), write(one, other, FLAG))
    one.area.view[FLAG] = 1
    taken: list[bytes] = []
    for turn in (1, 2):
        one.area.view[:9] = bytes([turn]) * 9
        both.post(9, INLINE, INLINE | SIGNALED)
        while fabric.step():
            if other.area.view[FLAG]:
                other.area.view[FLAG] = 0
                taken.append(bytes(other.area.view[:9]))
    assert taken == [bytes([1]) * 9, bytes([2]) * 9]


@pytest.mark.parametrize(
    ("scenario", "orders"),
    [
        (flag_then_row, 20),
        (size_payload_ok, 1),  # one packet lands front to back: there is but one
        (immediate_after_row, 5),
        (two_messages, 250),
        (two_in_a_row, 80),
    ],
)
def test_in_every_order_a_message_is_whole(
    scenario: Callable[[Fabric, Rig], None], orders: int
) -> None:
    assert on_each_order(scenario) >= orders


@pytest.mark.parametrize("scenario", [flag_then_row, size_payload_ok, two_messages])
def test_without_order_among_writes_flags_are_worth_nothing(
    scenario: Callable[[Fabric, Rig], None],
) -> None:
    with pytest.raises(AssertionError, match="torn"):
        on_each_order(scenario, ordered=False)


def test_without_order_among_writes_an_immediate_still_says_that_all_is_there() -> None:
    assert on_each_order(immediate_after_row, ordered=False) > 100


def test_the_number_of_orders_is_what_counting_says() -> None:
    """Two unsignalled one-byte writes on one queue pair: issue, land; issue, land."""
    orders: set[tuple[int, ...]] = set()

    def scenario(fabric: Fabric, rig: Rig) -> None:
        one, other = rig.pair()
        one.area.view[:1] = b"x"
        one.area.view[FLAG] = 1
        first, second = write(one, other, ROW), write(one, other, FLAG)
        first.post(1)
        second.post(1)
        seen: list[int] = []
        while fabric.step():
            seen.append(2 * other.area.view[FLAG] + (other.area.view[0] != 0))
        orders.add(tuple(seen))

    # i l i l | i i l l: the second may be on its way before the first has landed.
    assert on_each_order(scenario) == 2
    assert orders == {(0, 1, 1, 3), (0, 0, 1, 3)}


def test_versions_read_before_and_behind_the_data_find_what_is_torn() -> None:
    """A page is read in words, in any order, while its owner writes it.

    No version that came with the data says anything of it, nor does one more read behind; a read
    before and a read behind, on one queue pair, do.
    """
    deceived_by_copy = deceived_by_copy_and_after = 0

    def scenario(fabric: Fabric, rig: Rig) -> None:
        nonlocal deceived_by_copy, deceived_by_copy_and_after
        one, other = rig.pair()
        struct.pack_into("<QQ", other.area.view, 0, 2, 10)  # version, data
        batch = one.pair.prepare_reads(one.area.region, rkey=other.area.region.rkey, count_max=3)
        address, source = one.area.address, other.area.address
        batch.post([(address + 32, source, 8), (address, source, 16), (address + 40, source, 8)])
        writes = [(0, 3), (8, 11), (0, 4)]  # odd, data, even
        for _ in range(4):  # the three are on their way, and the first is answered, or ...
            fabric.step()
        while fabric.step():
            while writes and fabric.plan.choose(2):
                struct.pack_into("<Q", other.area.view, *writes.pop(0))
        version, data, _, _, before, after = struct.unpack_from("<6Q", one.area.view)
        if version % 2 == 0 and data != 10 + (version - 2) // 2:
            deceived_by_copy += 1
            deceived_by_copy_and_after += version == after
        if before == after and before % 2 == 0:
            assert data == 10 + (before - 2) // 2

    assert on_each_order(scenario) > 400
    assert 0 < deceived_by_copy_and_after < deceived_by_copy
