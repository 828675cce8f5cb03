"""A hostile client, and a hostile server, that post what they like: each harms itself alone.

Everywhere on the simulated device; over real drivers in the emulated machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio
import attrs
import pytest

from l5._errors import RemoteProtocolError
from l5.rdma import _discover, verbs
from l5.rdma._simulated import Fabric, Plan, SimulatedBackend
from tests.rdma.contract._rig import until
from tests.rdma.device._hostile import Hand, served, wait_for
from tests.rdma.device.test_transport import ADDRESS, resources
from tests.rdma.mailbox._lies import ATTACKS, FRAME, SERVER_ATTACKS, row
from tests.rdma.mailbox._rig import Pair, Rig, rig_over

WRITE, READ, IMMEDIATE = verbs.OP_WRITE, verbs.OP_READ, verbs.OP_WRITE_WITH_IMM
MODES = ("flags+imm", "imm")


@attrs.define(eq=False)
class Stage:
    """A server, a sound client for each mode, and how to count what is in use of the device."""

    rig: Rig
    sound: dict[str, Pair]
    in_use: Callable[[], object]


@pytest.fixture
def binding() -> None:
    """Not as for whole connections: the stage opens its device itself, once for all attacks."""


@pytest.fixture(scope="module", params=["simulated", "cverbs", "pyverbs"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    name: str = request.param
    fabric = Fabric(Plan())
    if name == "simulated":
        fabric.add_device("sim0", "127.0.0.1")
        backend: verbs.Backend = SimulatedBackend(fabric)
        address = "127.0.0.1"
    elif not ADDRESS:
        pytest.skip(f"no RDMA device for {name}")
    else:
        backend, address = _discover.backend(name), ADDRESS

    def in_use() -> object:
        if name == "simulated":
            return len(fabric.endpoints), len(fabric.ports["sim0"].regions)
        return resources()

    empty = in_use()
    with rig_over(backend, backend.devices()[0], address, fabric) as rig:
        sound = {mode: rig.pair(mode) for mode in MODES}
        before = in_use()
        yield Stage(rig, sound, in_use)
        assert in_use() == before, "what belonged to hostile ends is left"
    assert in_use() == empty


@pytest.fixture
def bad(stage: Stage) -> Iterator[Pair]:
    """A connection of which one end is hostile."""
    pair = stage.rig.pair("flags+imm")
    yield pair
    pair.close()
    stage.rig.pairs.remove(pair)


@pytest.fixture
def good(stage: Stage) -> Pair:
    """Another client of the same server."""
    return stage.sound["flags+imm"]


# ---- what the device refuses ---------------------------------------------------------------------

Target = tuple[int, int, int, int]
"""Opcode, address, key, length."""


def flag_of(pair: Pair, offset: int = 0) -> tuple[int, int]:
    region = pair.server.flag_region
    return region.address + offset, region.rkey


def row_of(pair: Pair, offset: int = 0) -> tuple[int, int]:
    region = pair.server.row_region
    return region.address + offset, region.rkey


def with_stale_key(bad: Pair, good: Pair) -> Target:
    """The row that it had before it asked for a longer one."""
    old = row_of(bad)

    def asked() -> bool:
        bad.server.try_receive()
        bad.server.settle()
        bad.client.try_receive()
        return bad.ask(bytes(6000))

    until(asked)
    wait_for(bad.server.try_receive)
    assert row_of(bad) != old
    return WRITE, *old, 64


def exported_to_another(bad: Pair, good: Pair) -> Target:
    """Memory that the server lets the other client read and write."""
    end = good.server_end
    access = verbs.LOCAL_WRITE | verbs.REMOTE_READ | verbs.REMOTE_WRITE
    region = end.register(end.scratch_memory.address, 64, access, end.scratch_memory)
    target = READ, region.address, region.rkey, 64
    bad.client_end.keep(lambda: end.deregister(region))  # when the attack is over
    return target


def own_staging(bad: Pair, good: Pair) -> Target:
    """What the server is about to send to it, before it is sent."""
    staging = bad.server_end.staging
    return READ, staging.address, staging.rkey or staging.lkey, 64


REFUSED: dict[str, Callable[[Pair, Pair], Target]] = {
    "a neighbour's row": lambda bad, good: (WRITE, *row_of(good), 64),
    "a neighbour's flag": lambda bad, good: (WRITE, *flag_of(good), 1),
    "a neighbour's row by its own key": lambda bad, good: (
        WRITE,
        row_of(good)[0],
        row_of(bad)[1],
        64,
    ),
    "before its row": lambda bad, good: (WRITE, *row_of(bad, -1), 64),
    "behind its row": lambda bad, good: (WRITE, *row_of(bad, 1), 4096),
    "more than its row": lambda bad, good: (WRITE, *row_of(bad), 4097),
    "before its flag": lambda bad, good: (WRITE, *flag_of(bad, -1), 1),
    "behind its flag": lambda bad, good: (WRITE, *flag_of(bad, 1), 1),
    "more than its flag": lambda bad, good: (WRITE, *flag_of(bad), 2),
    "at the end of all memory": lambda bad, good: (WRITE, (1 << 64) - 64, row_of(bad)[1], 64),
    "its row by the key of its flag": lambda bad, good: (WRITE, row_of(bad)[0], flag_of(bad)[1], 1),
    "a key that was good before": with_stale_key,
    "the next key": lambda bad, good: (WRITE, row_of(bad)[0], row_of(bad)[1] + 0x100, 64),
    "a key one bit off": lambda bad, good: (
        WRITE,
        row_of(bad)[0],
        row_of(bad)[1] ^ 1,
        64,
    ),
    "no key": lambda bad, good: (WRITE, row_of(bad)[0], 0, 64),
    "to read its row": lambda bad, good: (READ, *row_of(bad), 64),
    "to read a neighbour's row": lambda bad, good: (READ, *row_of(good), 64),
    "to read a neighbour's region": exported_to_another,
    "to read what is sent from": own_staging,
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_a_client_reaches_its_row_and_its_flag_alone(
    what: str, bad: Pair, good: Pair, stage: Stage
) -> None:
    opcode, address, rkey, length = REFUSED[what](bad, good)
    before = good.server._row.view.tobytes(), bad.server._row.view.tobytes()
    hand = Hand(bad.client_end)
    hand.end.memory.view[:64] = b"\x01" * 64
    hand.post(opcode, address, rkey, length)
    assert hand.status() == verbs.REMOTE_ACCESS_ERROR
    assert hand.end.pair.state == verbs.QP_ERROR, "the attacker goes on"
    assert (good.server._row.view.tobytes(), bad.server._row.view.tobytes()) == before
    served(good)


def test_an_atomic_on_its_row_is_refused(bad: Pair, good: Pair) -> None:
    hand = Hand(bad.client_end)
    address, rkey = row_of(bad)
    request = hand.end.pair.prepare_atomic(
        verbs.OP_FETCH_AND_ADD, hand.end.staging, address=hand.source, rkey=rkey, wr_id=0xBAD
    )
    hand.end.slots.take(1, verbs.SIGNALED)
    request.post(address, 1, 0, verbs.SIGNALED, 0xBAD)
    # Refused for its access, or as a request that this queue pair takes none of.
    assert hand.status() in (verbs.REMOTE_ACCESS_ERROR, verbs.REMOTE_INVALID_REQUEST)
    served(good)


# ---- what the protocol refuses -------------------------------------------------------------------


def fault_of(channel: object, kind: type[Exception]) -> Exception:
    """Wait until receiving raises that, as an event loop would receive."""

    def look() -> Exception | None:
        try:
            channel.on_event()  # type: ignore[attr-defined]
            channel.try_receive()  # type: ignore[attr-defined]
        except kind as error:
            return error
        return None

    return wait_for(look)


def send_row(pair: Pair, data: bytes) -> None:
    """Write a row and tell the server, as the connection's mode has it."""
    hand = Hand(pair.client_end)
    if pair.client.mode == "imm":
        assert hand.put(*row_of(pair), data, IMMEDIATE) == verbs.SUCCESS
        return
    assert not data or hand.put(*row_of(pair), data) == verbs.SUCCESS
    assert hand.put(*flag_of(pair), b"\x01", IMMEDIATE) == verbs.SUCCESS


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("mode", MODES)
def test_garbage_in_a_row_ends_its_writer(attack: str, mode: str, stage: Stage) -> None:
    bad = stage.rig.pair(mode)
    try:
        send_row(bad, ATTACKS[attack])
        assert "the peer" in str(fault_of(bad.server, RemoteProtocolError))
        served(stage.sound[mode])
    finally:
        bad.close()
        stage.rig.pairs.remove(bad)


def test_a_flood_of_flags_ends_its_sender_and_delays_nobody(bad: Pair, good: Pair) -> None:
    hand = Hand(bad.client_end)
    hand.end.memory.view[:1] = b"\x01"
    for _ in range(30):
        hand.post(WRITE, *flag_of(bad), 1)
        hand.post(WRITE, *flag_of(bad), 1)
    served(good)
    assert [hand.status() for _ in range(60)] == [verbs.SUCCESS] * 60
    assert "flag" in str(fault_of(bad.server, RemoteProtocolError))
    served(good)


def test_more_immediates_than_there_are_receives_stop_their_sender(bad: Pair, good: Pair) -> None:
    """The server posts them anew as it takes rows; there are none to take."""
    hand = Hand(bad.client_end)
    for _ in range(40):
        hand.post(IMMEDIATE, *row_of(bad), 0)
    found = [hand.status() for _ in range(33)]
    assert found == [verbs.SUCCESS] * 32 + [verbs.RNR_RETRIES_EXCEEDED]
    served(good)


def test_the_value_of_an_immediate_means_nothing(bad: Pair, good: Pair) -> None:
    hand = Hand(bad.client_end)
    assert hand.put(*row_of(bad), row(FRAME)) == verbs.SUCCESS
    hand.end.memory.view[:1] = b"\x01"
    hand.post(IMMEDIATE, *flag_of(bad), 1, 0xFFFFFFFF)
    assert hand.status() == verbs.SUCCESS
    assert wait_for(bad.server.try_receive).payload == b"abc"
    served(good)


def test_a_message_where_only_immediates_are_expected_ends_its_sender(
    bad: Pair, good: Pair
) -> None:
    hand = Hand(bad.client_end)
    hand.post(verbs.OP_SEND, 0, 0, 100)
    assert hand.status() != verbs.SUCCESS
    assert fault_of(bad.server, anyio.EndOfStream).args
    served(good)


def test_a_queue_pair_that_fails_between_row_and_flag(bad: Pair, good: Pair, stage: Stage) -> None:
    """The row is there and nobody is told of it: no request was made, and the end is noticed."""
    hand = Hand(bad.client_end)
    assert hand.put(*row_of(bad), row(FRAME)) == verbs.SUCCESS
    hand.to_error()
    served(good)
    bad.server.on_event()
    assert bad.server.try_receive() is None
    assert bad.answer(b"anybody there?")
    stage.rig.fabric.expire()  # on a real device the retries, which are finite, take a moment
    assert "acknowledge" in str(fault_of(bad.server, anyio.EndOfStream))
    served(good)


# ---- a hostile server ----------------------------------------------------------------------------


def ring_of(pair: Pair, offset: int = 0) -> tuple[int, int]:
    region = pair.client.ring_region
    return region.address + offset, region.rkey


def words_of(pair: Pair, offset: int = 0) -> tuple[int, int]:
    region = pair.client.words_region
    return region.address + offset, region.rkey


SERVER_REFUSED: dict[str, Callable[[Pair, Pair], Target]] = {
    "before the ring": lambda bad, good: (WRITE, *ring_of(bad, -8), 64),
    "behind the ring": lambda bad, good: (WRITE, *ring_of(bad, (128 << 10) - 8), 64),
    "the client's words": lambda bad, good: (WRITE, *words_of(bad), 8),
    "to read the ring": lambda bad, good: (READ, *ring_of(bad), 64),
    "to read beyond the words": lambda bad, good: (READ, *words_of(bad), 24),
    "another client's ring": lambda bad, good: (WRITE, *ring_of(good), 64),
}


@pytest.mark.parametrize("what", list(SERVER_REFUSED))
def test_a_server_reaches_its_clients_ring_alone(what: str, bad: Pair, good: Pair) -> None:
    hand = Hand(bad.server_end)
    hand.end.memory.view[:64] = b"\x01" * 64
    hand.post(*SERVER_REFUSED[what](bad, good))
    assert hand.status() == verbs.REMOTE_ACCESS_ERROR
    served(good)


@pytest.mark.parametrize("attack", list(SERVER_ATTACKS))
def test_garbage_in_a_ring_ends_that_connection(attack: str, bad: Pair, good: Pair) -> None:
    hand = Hand(bad.server_end)
    assert hand.put(*ring_of(bad), SERVER_ATTACKS[attack], IMMEDIATE) == verbs.SUCCESS
    assert "the peer" in str(fault_of(bad.client, RemoteProtocolError))
    served(good)


def test_a_message_without_its_end_is_not_taken(bad: Pair, good: Pair, stage: Stage) -> None:
    """Its OK byte never comes, and then the server's queue pair fails: an end, and no message."""
    hand = Hand(bad.server_end)
    assert hand.put(*ring_of(bad), SERVER_ATTACKS["rows that were never sent"][:-1]) == 0
    assert bad.client.try_receive() is None
    hand.to_error()
    assert bad.ask(b"anybody there?")
    stage.rig.fabric.expire()
    assert "acknowledge" in str(fault_of(bad.client, anyio.EndOfStream))
    served(good)
