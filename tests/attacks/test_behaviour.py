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
                await anyio.sleep(0.1)
                await server.tell("how much")
                counts.append(int(await server.says("sent")))
            assert counts[-1] <= 4 * MIB  # the agreed window
            assert server.rss_bytes() - before < 16 * MIB
            async with await l5.connect(at) as other:
                for _ in range(1000):
                    assert await other.receive() == bytes(10_000)


async def test_a_thousand_who_never_speak(stage: Stage) -> None:
    async with l5.serve(
        bytes.upper, "l5+tcp://127.0.0.1:0", hello_timeout=0.05, backlog=1024
    ) as server:
        port = int(server.urls[0].rpartition(":")[2])
        async with await l5.connect(server.urls[0]) as bystander:
            async with stage.actor("_hostile:keep_silent", port, 1000) as strangers:
                await strangers.says("silent")
                async with await l5.connect(server.urls[0], connect_timeout=60.0) as client:
                    assert await client.request(b"new") == b"NEW"
                assert await bystander.request(b"old") == b"OLD"
        while server.statistics().connections:
            await anyio.sleep(0.001)
