"""What a peer says in the bootstrap is checked before a device believes it; nothing is left.

The peer here speaks the hello well and lies about its queue pair, its memory, its sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import anyio
import pytest

from l5._errors import TransportUnavailable
from l5._options import ListenOptions, Options
from l5.abc import Link, PeerInfo, UpgradeAttempt
from l5.rdma import _devices, _simulated
from l5.transports.rdma import RDMATransport
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


@pytest.fixture(autouse=True)
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[_simulated.Fabric]:
    simulate(monkeypatch)
    monkeypatch.setattr(_devices, "_open", {})
    fabric = _simulated.backend().fabric
    yield fabric
    assert fabric.endpoints == {}
    assert [port.regions for port in fabric.ports.values()] == [{}]
    assert not _devices._open


def offered() -> tuple[UpgradeAttempt, dict[str, Any]]:
    transport, options = RDMATransport(), Options()
    attempt = transport.initiate(LINK, transport.offer(LINK, options), options)
    params = {**transport.offer(LINK, options), **attempt.message.params}
    return attempt, params


async def test_both_ends_are_made_and_given_back() -> None:
    client, params = offered()
    server = RDMATransport().join(LINK, params, (), ListenOptions())
    answer = server.message.params
    with anyio.fail_after(10):
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
        with anyio.fail_after(10), pytest.raises(TransportUnavailable):
            await client.verify(LINK, {**server.message.params, name: value})
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
        with anyio.fail_after(10), pytest.raises(TransportUnavailable, match="first round trip"):
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
        with anyio.fail_after(10):
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
