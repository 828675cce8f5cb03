"""Hostile ends of whole connections: what their victim is told, who goes on, what is left.

On the simulated device everywhere; over real drivers in the emulated machine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

import l5
from l5.rdma import _devices, _simulated, verbs
from l5.rdma._room import mailroom
from tests.rdma._simulated import simulate
from tests.rdma.device._hostile import Hand
from tests.rdma.device.test_transport import ADDRESS, resources
from tests.rdma.mailbox._lies import ATTACKS, FRAME, SERVER_ATTACKS, row

pytestmark = pytest.mark.anyio
WRITE, IMMEDIATE = verbs.OP_WRITE, verbs.OP_WRITE_WITH_IMM


@pytest.fixture(params=["simulated", "cverbs", "pyverbs"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "simulated":
        simulate(monkeypatch)
        monkeypatch.setattr(_devices, "_open", {})
    elif not ADDRESS:
        pytest.skip(f"no RDMA device for {name}")
    monkeypatch.setenv("L5_VERBS", name)
    return name


def in_use(binding: str) -> object:
    if binding != "simulated":
        return resources()
    fabric = _simulated.backend().fabric
    return len(fabric.endpoints), len(fabric.ports["sim0"].regions), len(_devices._open)


@attrs.define(eq=False)
class Served:
    """A server and a sound client of it."""

    server: Any
    sound: Any
    errors: list[Exception] = attrs.field(factory=list[Exception])
    """How sessions ended that were attacked."""

    async def connect(self) -> tuple[Any, Any]:
        """Return another connection, and the server's channel of it."""
        before = set(mailroom()._channels.values())
        client = await l5.connect(self.server.urls[0])
        (channel,) = set(mailroom()._channels.values()) - before
        assert await client.request(b"ab") == b"ba"
        return client, channel

    def watch(self, session: Any) -> None:
        self.errors.clear()
        session.on_close.append(lambda: self.errors.append(session.error))

    async def until_over(self) -> Exception:
        """Wait for the end of what is watched, while the other client is served."""
        with anyio.fail_after(60):
            while not self.errors:
                assert await self.sound.request(b"sound") == b"dnuos"
                await anyio.sleep(0.002)
        assert await self.sound.request(b"sound") == b"dnuos"
        return self.errors[0]


async def reverse(request: bytes) -> bytes:
    return bytes(request)[::-1]


@asynccontextmanager
async def served(binding: str) -> AsyncGenerator[Served]:
    address = "127.0.0.1" if binding == "simulated" else ADDRESS
    before = in_use(binding)
    async with l5.serve(reverse, f"l5+rdma://{address}:0", insecure=True) as server:
        async with await l5.connect(server.urls[0]) as sound:
            assert await sound.request(b"ab") == b"ba"
            during = in_use(binding)
            yield Served(server, sound)
            with anyio.fail_after(60):
                while in_use(binding) != during:
                    await anyio.sleep(0.02)
    assert in_use(binding) == before


# ---- a client ------------------------------------------------------------------------------------

Attack = Callable[[Hand, Any, Any], None]
"""By a client's hand, on the server's channels of itself and of another."""


def into_the_neighbours_row(hand: Hand, own: Any, other: Any) -> None:
    region = other.row_region
    hand.post(WRITE, region.address, region.rkey, 64)


def behind_its_flag(hand: Hand, own: Any, other: Any) -> None:
    hand.post(WRITE, own.flag_region.address + 1, own.flag_region.rkey, 1)


def garbage(hand: Hand, own: Any, other: Any) -> None:
    data = ATTACKS["a frame beyond its row"]
    hand.put(own.row_region.address, own.row_region.rkey, data)
    hand.put(own.flag_region.address, own.flag_region.rkey, b"\x01", IMMEDIATE)


def flags_without_rows(hand: Hand, own: Any, other: Any) -> None:
    hand.end.memory.view[:1] = b"\x01"
    for _ in range(20):
        hand.post(WRITE, own.flag_region.address, own.flag_region.rkey, 1)


def half_a_request(hand: Hand, own: Any, other: Any) -> None:
    data = row(FRAME)
    hand.end.memory.view[: len(data)] = data
    hand.post(WRITE, own.row_region.address, own.row_region.rkey, len(data))
    hand.to_error()


CLIENTS: dict[str, tuple[Attack, str, str]] = {
    "into the neighbour's row": (into_the_neighbours_row, "out of bounds", ""),
    "behind its flag": (behind_its_flag, "out of bounds", ""),
    "garbage": (garbage, "middle of a frame", "ends in the middle of a frame"),
    "flags without rows": (flags_without_rows, "flag", "flag over a row of 0 bytes"),
    "half a request": (half_a_request, "the queue pair", ""),
}
"""The attack; what the attacker is told; which rule of the protocol it broke."""


async def attack_the_server(all: Served, attack: str) -> None:
    post, told, fault = CLIENTS[attack]
    other = next(iter(mailroom()._channels.values()))
    client, channel = await all.connect()
    all.watch(channel._session)
    post(Hand(client._session.channel._end), channel, other)
    if fault:
        await all.until_over()
    # Whoever asked for what the device refuses has no queue pair any more: its socket ends.
    with pytest.raises(anyio.BrokenResourceError, match=told), anyio.fail_after(60):
        while True:
            await client.request(b"and this?")
    error = await all.until_over()
    assert type(error) is (l5.RemoteProtocolError if fault else anyio.BrokenResourceError), attack
    assert fault in str(error)
    await client.aclose()


async def test_hostile_clients(binding: str) -> None:
    """One after the other, of one server: emulated machines are slow."""
    async with served(binding) as all:
        for attack in CLIENTS:
            await attack_the_server(all, attack)


# ---- a server ------------------------------------------------------------------------------------


async def attack_the_client(all: Served, attack: str) -> None:
    client, channel = await all.connect()
    all.watch(client._session)
    ring = client._session.channel.ring_region
    at = ring.address + client._session.channel._spot.read
    Hand(channel._end).put(at, ring.rkey, SERVER_ATTACKS[attack], IMMEDIATE)
    assert type(await all.until_over()) is l5.RemoteProtocolError, attack
    with pytest.raises(l5.RemoteProtocolError, match="the peer"):
        await client.request(b"ab")
    await client.aclose()


async def test_hostile_servers(binding: str) -> None:
    async with served(binding) as all:
        for attack in SERVER_ATTACKS:
            await attack_the_client(all, attack)
