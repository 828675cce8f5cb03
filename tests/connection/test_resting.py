"""Idle rings leave the scan of their event loop, and come back when something comes or is sent."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import native
from l5._wait import current_hub

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

CONNECTIONS = 30  # twice as many rings: both ends are in this event loop


def breathe(turns: int = 512) -> None:
    """Make the poller believe that the event loop ran so often: it looks at who is silent twice."""
    poller = current_hub().poller
    assert poller is not None
    for _ in range(turns):
        poller.breathe()


def scanned() -> tuple[int, int]:
    poller = current_hub().poller
    assert poller is not None
    return poller.count, poller.total


async def connect_all(stack: AsyncExitStack, url: str) -> list[l5.Connection]:
    return [
        await stack.enter_async_context(await l5.connect(url, ring=65536))
        for _ in range(CONNECTIONS)
    ]


async def test_who_rests_is_still_heard(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(l5.serve(bytes.upper, f"l5+shm://{tmp_path}/s"))
        clients = await connect_all(stack, f"l5+shm://{tmp_path}/s")
        assert scanned() == (2 * CONNECTIONS, 2 * CONNECTIONS)
        breathe()
        assert scanned() == (0, 2 * CONNECTIONS)
        for number, client in enumerate(clients):
            assert await client.request(b"hello %d" % number) == b"HELLO %d" % number
            assert scanned()[0] == 2 * (number + 1)
        # Those that are in use stay; of the others nothing has come since the last look.
        for _ in range(3):
            for client in clients[:3]:
                assert await client.request(b"x") == b"X"
            breathe(256)
        assert scanned() == (6, 2 * CONNECTIONS)


async def test_messages_from_either_side_end_a_rest(tmp_path: Path) -> None:
    accepted: list[l5.Connection] = []

    async def on_connection(connection: l5.Connection) -> None:
        accepted.append(connection)
        await anyio.sleep_forever()

    url = f"l5+shm://{tmp_path}/s"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(l5.serve(on_connection, url, per="connection"))
        clients = await connect_all(stack, url)
        while len(accepted) < CONNECTIONS:
            await anyio.sleep(0.001)
        for payload in (b"small", bytes(300_000)):  # the second needs many laps of the ring
            for sender, receiver in ((clients, accepted), (accepted, clients)):
                breathe()
                assert scanned()[0] < CONNECTIONS  # some have credit that nobody looked at yet
                for one, other in zip(sender, receiver, strict=True):
                    async with anyio.create_task_group() as group:
                        group.start_soon(one.send, payload)
                        assert await other.receive() == payload


async def test_a_sleeping_loop_is_woken_by_who_rests(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def take(connection: l5.Connection) -> None:
        got.append(await connection.receive())

    async def on_connection(connection: l5.Connection) -> None:
        await connection.send(b"answer to " + await connection.receive())
        await anyio.sleep_forever()

    url = f"l5+shm://{tmp_path}/s"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(l5.serve(on_connection, url, per="connection"))
        clients = await connect_all(stack, url)
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(take, client)
            await anyio.sleep(0.01)
            breathe()
            assert scanned()[0] == 0
            for client in clients:
                await client.send(b"a question")
                await anyio.lowlevel.checkpoint()
        assert got == [b"answer to a question"] * CONNECTIONS


async def test_closing_in_any_order(tmp_path: Path) -> None:
    choose = random.Random(1)
    url = f"l5+shm://{tmp_path}/s"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(l5.serve(bytes.upper, url))
        clients = await connect_all(stack, url)
        while clients:
            breathe()
            for client in choose.sample(clients, len(clients) // 2):
                assert await client.request(b"x") == b"X"
            await clients.pop(choose.randrange(len(clients))).aclose()
            for client in clients:
                assert await client.request(b"y") == b"Y"
            count, total = scanned()
            assert count <= total <= 2 * (len(clients) + 1)
        while scanned()[1]:
            await anyio.sleep(0.001)


async def test_a_few_rings_are_always_scanned(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(bytes.upper, url), await l5.connect(url) as client:
        breathe()
        assert scanned() == (2, 2)
        assert await client.request(b"x") == b"X"
