"""Peers that do nothing forbidden, and nothing that one could live on: others never notice."""

from __future__ import annotations

import anyio
import pytest

import l5
from tests.attacks._actors import Stage

pytestmark = pytest.mark.anyio

MIB = 1 << 20


async def test_a_client_that_never_reads(url: str, stage: Stage) -> None:
    """The server's sender waits, its memory stays bounded, and another client is served."""
    async with stage.actor("_hostile:talk", url) as server:
        at = await server.says("at")
        before = server.rss_bytes()
        async with stage.actor("_hostile:never_read", at) as client:
            await client.says("connected")
            counts = [-1, 0]
            while not 0 < counts[-1] == counts[-2]:
                await anyio.sleep(0.05)
                await server.tell("how much")
                counts.append(int(await server.says("sent")))
            assert counts[-1] <= 4 * MIB  # the agreed window
            assert server.rss_bytes() - before < 16 * MIB
            async with await l5.connect(at) as other:
                for _ in range(1000):
                    assert await other.receive() == bytes(10_000)


async def test_a_client_that_hardly_reads(url: str, stage: Stage) -> None:
    """A byte at a time, or a message: what the server holds for it stays what was agreed."""
    async with stage.actor("_hostile:talk", url) as server:
        at = await server.says("at")
        before = server.rss_bytes()
        async with stage.actor("_hostile:read_slowly", at) as client:
            await client.says("connected")
            for _ in range(10):
                await anyio.sleep(0.02)
                await server.tell("how much")
                sent = int(await server.says("sent"))
            assert 0 < sent <= 4 * MIB + 1000 * 10_000  # the agreed window, and all it can take
            assert server.rss_bytes() - before < 16 * MIB
            async with await l5.connect(at) as other:
                for _ in range(1000):
                    assert await other.receive() == bytes(10_000)


async def test_a_client_that_never_takes_its_answers(url: str, stage: Stage) -> None:
    """As many answers are made as it may have requests in flight, and not one more."""
    made = 0

    async def answer(request: bytes) -> bytes:
        nonlocal made
        if request != b"much":
            return request
        made += 1
        return bytes(MIB)

    async with l5.serve(answer, url, in_flight_max=8) as server:
        async with await l5.connect(server.urls[0]) as bystander:
            async with stage.actor("_hostile:ask_and_never_read", server.urls[0], 8) as client:
                await client.says("asked")
                while made < 8:
                    await anyio.sleep(0.001)
                for _ in range(100):
                    assert await bystander.request(b"still") == b"still"
                assert made == 8
                assert server.statistics().running <= 8
            # A cancelled handler ends in a later turn of the loop than its connection.
            while server.statistics().connections > 1 or server.statistics().running:
                await anyio.sleep(0.001)


async def test_a_server_that_never_reads(url: str, stage: Stage) -> None:
    """The client's sender waits, its memory stays bounded, and it goes on asking another server."""
    async with stage.actor("_hostile:listen_silently", url) as server:
        silent = await server.says("at")
        async with l5.serve(bytes, "l5+tcp://127.0.0.1:0") as honest:
            async with stage.actor("_hostile:pour", silent, honest.urls[0]) as client:
                await client.says("pouring")
                before, counts = client.rss_bytes(), [-1, 0]
                while not 0 < counts[-1] == counts[-2]:
                    await anyio.sleep(0.05)
                    await client.tell("how much")
                    counts.append(int(await client.says("sent")))
                assert counts[-1] <= 4 * MIB
                assert client.rss_bytes() - before < 16 * MIB


async def test_a_thousand_who_never_speak(stage: Stage) -> None:
    async with l5.serve(
        bytes.upper, "l5+tcp://127.0.0.1:0", hello_timeout=3.0, hellos_max=400, backlog=1024
    ) as server:
        port = int(server.urls[0].rpartition(":")[2])
        async with await l5.connect(server.urls[0]) as bystander:
            async with stage.actor("_hostile:keep_silent", port, 1000) as strangers:
                await strangers.says("silent")
                patient = {"hello_timeout": 60.0, "connect_timeout": 60.0}
                async with await l5.connect(server.urls[0], **patient) as client:
                    assert await client.request(b"new") == b"NEW"
                assert await bystander.request(b"old") == b"OLD"
        while server.statistics().connections:
            await anyio.sleep(0.001)
