"""What a peer says in the bootstrap is checked before a device believes it; nothing is left.

The peer here speaks the hello well and lies about its queue pair, its memory, its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import anyio
import attrs
import pytest

from l5._errors import TransportUnavailable
from l5._options import ListenOptions, Options
from l5.abc import Link, PeerInfo, UpgradeAttempt
from l5.rdma import _devices, _simulated, verbs
from l5.transports.rdma import _ADDRESS, RDMATransport
from tests.rdma._simulated import simulate

pytestmark = pytest.mark.anyio

EDGE = (1 << 64) - 64


class Here:
    """As much of a link as a bootstrap looks at."""

    local_host = "127.0.0.1"
    peer = PeerInfo("127.0.0.1:40000")


class Elsewhere(Here):
    """The peer's socket is at another address than its queue pair."""

    peer = PeerInfo("192.0.2.66:40000")


LINK = cast(Link, Here())
MULTICAST = b"\xff\x0e" + bytes(13) + b"\x01"
UNFIT_FIELDS: dict[str, tuple[int, object]] = {
    "the number of a port's own management": (0, 1),
    "the number of multicasts": (0, (1 << 24) - 1),
    "a number of more than 24 bits": (0, 1 << 24),
    "a first packet of more than 24 bits": (1, 1 << 24),
    "no address": (2, bytes(16)),
    "the address of many": (2, MULTICAST),
    "no MTU": (4, 0),
    "an MTU that is none": (4, 6),
}


def with_field(packed: bytes, name: str) -> bytes:
    fields: list[Any] = list(_ADDRESS.unpack(packed))
    index, value = UNFIT_FIELDS[name]
    fields[index] = value
    return _ADDRESS.pack(*fields)


@pytest.fixture(autouse=True)
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[_simulated.Fabric]:
    simulate(monkeypatch)
    monkeypatch.setattr(_devices, "_open", {})
    fabric = _simulated.backend().fabric
    yield fabric
    assert fabric.endpoints == {}
    assert [port.regions for port in fabric.ports.values()] == [{}]
    assert not _devices._open


def offered(options: Options | None = None) -> tuple[UpgradeAttempt, dict[str, Any]]:
    transport, options = RDMATransport(), options or Options()
    attempt = transport.initiate(LINK, transport.offer(LINK, options), options)
    params = {**transport.offer(LINK, options), **attempt.message.params}
    return attempt, params


async def test_both_ends_are_made_and_given_back() -> None:
    client, params = offered()
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    answer = server.message.params
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(server.verify, LINK, {})
            await client.verify(LINK, answer)
            group.cancel_scope.cancel()
    client.abandon()
    server.abandon()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("address", b""),
        ("address", bytes(30)),
        ("address", b"\xff" * 31),
        ("address", 7),
        ("ring_address", -1),
        ("ring_address", 1 << 64),
        ("ring_address", EDGE),
        ("ring_address", "0"),
        ("ring_key", 1 << 32),
        ("ring_bytes", 3 << 20),
        ("ring_bytes", 1 << 40),
        ("ring_bytes", True),
        ("words_address", (1 << 64) - 8),
        ("words_key", -1),
        ("receives", 1),
        ("receives", 1 << 20),
        ("row_bytes", 0),
        ("row_bytes", 1 << 60),
    ],
)
async def test_a_client_that_lies_is_refused(name: str, value: object) -> None:
    client, params = offered()
    try:
        with pytest.raises(TransportUnavailable):
            RDMATransport().join(LINK, {**params, name: value}, (), ListenOptions())
    finally:
        client.abandon()


@pytest.mark.parametrize(
    "missing",
    ["address", "ring_address", "ring_key", "words_address", "words_key", "receives", "row_bytes"],
)
async def test_a_client_that_says_too_little_is_refused(missing: str) -> None:
    client, params = offered()
    del params[missing]
    try:
        with pytest.raises(TransportUnavailable):
            RDMATransport().join(LINK, params, (), ListenOptions())
    finally:
        client.abandon()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("address", bytes(3)),
        ("mode", "telepathy"),
        ("mode", None),
        ("row_address", EDGE),
        ("row_address", -1),
        ("row_key", "x"),
        ("row_bytes", 8),
        ("row_bytes_max", 300),
        ("row_bytes_max", 1 << 40),
        ("flag_address", 1 << 64),
        ("flag_key", None),
    ],
)
async def test_a_server_that_lies_is_refused(name: str, value: Any) -> None:
    client, params = offered()
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    try:
        with anyio.fail_after(60), pytest.raises(TransportUnavailable):
            await client.verify(LINK, {**server.message.params, name: value})
    finally:
        client.abandon()
        server.abandon()


@pytest.mark.parametrize("field", list(UNFIT_FIELDS))
async def test_each_number_of_a_queue_pairs_address_is_checked_on_both_sides(field: str) -> None:
    client, params = offered()
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    try:
        with pytest.raises(TransportUnavailable, match="the peer's queue pair"):
            lying = {**params, "address": with_field(params["address"], field)}
            RDMATransport().join(LINK, lying, (), ListenOptions())
        answer = dict(server.message.params)
        answer["address"] = with_field(cast(bytes, answer["address"]), field)
        with anyio.fail_after(60), pytest.raises(TransportUnavailable, match="the peer's queue"):
            await client.verify(LINK, answer)
    finally:
        client.abandon()
        server.abandon()


async def test_on_infiniband_a_port_has_a_lid_of_its_own(fabric: _simulated.Fabric) -> None:
    """There a GID has nothing to do with the socket's address."""
    port = fabric.ports["sim0"]
    port.link_layer = verbs.LINK_INFINIBAND
    port.gids = (verbs.Gid(0, b"\xfe\x80" + bytes(13) + b"\x07", verbs.GID_INFINIBAND),)
    client, params = offered()
    try:
        for lid in (0, verbs.LID_MAX + 1):
            address = list(_ADDRESS.unpack(params["address"]))
            address[3] = lid
            lying = {**params, "address": _ADDRESS.pack(*address)}
            with pytest.raises(TransportUnavailable, match=f"the LID {lid}"):
                RDMATransport().join(LINK, lying, (), ListenOptions())
    finally:
        client.abandon()


async def test_a_server_cannot_make_a_client_trust_more_than_it_wants_to() -> None:
    """Who asked for the mode that trusts no order gets no other."""
    options = Options(rdma_mode="imm")
    client, params = offered(options)
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    try:
        assert server.message.params["mode"] == "imm"
        with anyio.fail_after(60), pytest.raises(TransportUnavailable, match="'imm' was asked"):
            await client.verify(LINK, {**server.message.params, "mode": "flags"})
    finally:
        client.abandon()
        server.abandon()


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_device_that_answers_no_reads_still_serves(
    who: str, fabric: _simulated.Fabric
) -> None:
    """A READ that is not granted would never be answered; none is posted, to either side."""
    port = fabric.ports["sim0"]
    usual, none = port.limits, attrs.evolve(port.limits, rd_atomic=0, init_rd_atomic=0)
    port.limits = none if who == "client" else usual
    client, params = offered()
    port.limits = usual if who == "client" else none
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    ends = [cast(Any, each).channel._end for each in (client, server)]
    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(server.verify, LINK, {})
                await client.verify(LINK, server.message.params)
        assert [end.rd_atomic for end in ends] == [0, 0]
    finally:
        client.abandon()
        server.abandon()


async def test_a_queue_pair_is_where_its_socket_is_and_nowhere_else() -> None:
    """Or a client could name a third party, to whom the server would send."""
    client, params = offered()
    elsewhere = cast(Link, Elsewhere())
    try:
        with pytest.raises(TransportUnavailable, match=r"at 127\.0\.0\.1, its socket at 192\.0"):
            RDMATransport().join(elsewhere, params, (), ListenOptions())
        server = RDMATransport().join(LINK, params, (), ListenOptions())
        try:
            with pytest.raises(TransportUnavailable, match="NAT"):
                await client.verify(elsewhere, server.message.params)
        finally:
            server.abandon()
    finally:
        client.abandon()


async def test_a_server_whose_keys_open_nothing_is_noticed_in_the_first_round_trip() -> None:
    client, params = offered()
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    answer = {**server.message.params}
    answer["row_key"] = int(answer["row_key"]) ^ 2
    try:
        with anyio.fail_after(60), pytest.raises(TransportUnavailable, match="first round trip"):
            await client.verify(LINK, answer)
    finally:
        client.abandon()
        server.abandon()


async def test_a_client_whose_ring_cannot_be_written_harms_only_itself() -> None:
    """Its keys are wrong: the server's first answer breaks that queue pair, and no more."""
    client, params = offered()
    params["ring_key"] = int(params["ring_key"]) ^ 2
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(expect_refusal, server)
                with pytest.raises(TransportUnavailable):
                    await client.verify(LINK, server.message.params)
                group.cancel_scope.cancel()
    finally:
        client.abandon()
        server.abandon()


async def expect_refusal(server: UpgradeAttempt) -> None:
    try:
        await server.verify(LINK, {})
    except TransportUnavailable:
        pass
