"""Every limit of a server is reached: who reaches it is told so, and nobody else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from tests.attacks._actors import Stage

pytestmark = pytest.mark.anyio

SMALL = 64 << 10
SEGMENT = 2 * SMALL + 4096


async def echo(request: bytes) -> bytes:
    return request


@asynccontextmanager
async def serving(url: str, handler: Any = echo, **options: Any) -> AsyncIterator[l5.Server]:
    """A server with one client who must never notice anything."""
    async with l5.serve(handler, url, **options) as server:
        async with await l5.connect(server.urls[0], ring=SMALL) as bystander:
            assert await bystander.request(b"before") == b"before"
            yield server
            assert await bystander.request(b"after") == b"after"


async def test_total_shared(stage: Stage, tmp_path: Path) -> None:
    """Three connections fit, the bystander's among them: the others stay on their sockets."""
    url = f"l5+unix://{tmp_path}/s"
    async with serving(url, total_shared=3 * SEGMENT) as server:
        async with stage.actor("_hostile:hold", url, 4, {"ring": SMALL}) as client:
            lines = [await client.says() for _ in range(4)]
            assert [line.split()[0] for line in lines] == ["shm", "shm", "unix", "unix"]
            assert "share 396 KiB, and its total_shared is 396 KiB" in lines[2]
            await client.tell("go on")
            assert await client.says() == "all served"
        while server.statistics().connections > 1:
            await anyio.sleep(0.001)
        # What they had can be had again.
        async with stage.actor("_hostile:hold", url, 2, {"ring": SMALL}) as client:
            assert [(await client.says()).split()[0] for _ in range(2)] == ["shm", "shm"]


async def test_total_shared_over_tcp_and_demanded(stage: Stage) -> None:
    async with serving("l5://127.0.0.1:0", total_shared=SEGMENT) as server:
        place = server.urls[0].partition("://")[2]
        async with stage.actor("_hostile:hold", f"l5+shm://{place}", 1, {"ring": SMALL}) as client:
            line = await client.says()
            assert line.startswith("refused") and "total_shared is 132 KiB" in line
        async with stage.actor("_hostile:hold", f"l5://{place}", 1, {"ring": SMALL}) as client:
            assert (await client.says()).startswith("tcp")


async def test_connections(url: str, stage: Stage) -> None:
    async with serving(url, connections_max=2) as server:
        async with stage.actor("_hostile:hold", server.urls[0], 2, {"ring": SMALL}) as client:
            assert not (await client.says()).startswith("refused")
            line = await client.says()
            assert line.startswith("refused") and "busy" in line
            assert "2 connections are open" in line
            await client.tell("go on")
            assert await client.says() == "all served"


async def wait_or_echo(request: bytes) -> bytes:
    if request == b"wait":
        await anyio.sleep_forever()
    return request


OVERRUNS = {
    "requests": "more than the agreed 8 requests in flight",
    "message": "a message of more than the agreed 65540 bytes",
}


@pytest.mark.parametrize("what", list(OVERRUNS))
async def test_more_than_was_agreed(url: str, stage: Stage, what: str) -> None:
    """In-flight requests, and the size of a message."""
    limits: dict[str, Any] = {"max_message": SMALL, "segment": 4096, "reassembly": SMALL}
    limits["in_flight_max"] = 8
    async with serving(url, wait_or_echo, **limits) as server:
        async with stage.actor("_hostile:overrun", server.urls[0], what) as client:
            assert OVERRUNS[what] in await client.says("told")
        # A cancelled handler ends in a later turn of the loop than its connection.
        while server.statistics().connections > 1 or server.statistics().running:
            await anyio.sleep(0.001)


async def test_total_reassembly(url: str, stage: Stage) -> None:
    """Half requests of one client hold it all: those of another are refused, it is not cut off."""
    limits: dict[str, Any] = {"max_message": SMALL, "segment": 4096, "reassembly": SMALL}
    count = 2 * SMALL // 4096  # at least: the oldest is granted more
    async with serving(url, total_reassembly=SMALL, **limits) as server:
        async with await l5.connect(server.urls[0]) as client:
            long = bytes(range(250)) * 100
            async with stage.actor("_hostile:begin", server.urls[0], count) as attacker:
                await attacker.says("begun")
                for deadline in (None, 60.0):
                    with pytest.raises(l5.RequestFailed, match="is used up: try again") as caught:
                        await client.request(long, deadline=deadline)
                    assert caught.value.remote_type == "Overloaded"
                assert await client.request(b"short") == b"short"
            while server.statistics().connections > 2:
                await anyio.sleep(0.001)
            assert await client.request(long) == long


async def test_a_message_that_stands_still(url: str, stage: Stage) -> None:
    """Who begins long requests and lets others wait for their rest is cut off, and told why."""
    limits: dict[str, Any] = {"max_message": SMALL, "segment": 4096, "reassembly": SMALL}
    count = 2 * SMALL // 4096
    async with serving(url, total_reassembly=SMALL, stall_timeout=0.1, **limits) as server:
        async with await l5.connect(server.urls[0]) as client:
            long = bytes(range(250)) * 100
            refused = 0
            while not refused:  # on a busy machine an attacker is gone before anybody was refused
                async with stage.actor("_hostile:begin", server.urls[0], count) as attacker:
                    try:
                        await attacker.says("begun")
                    except anyio.EndOfStream:
                        continue
                    while True:
                        try:
                            assert await client.request(long) == long
                            break
                        except l5.RequestFailed as error:
                            assert error.remote_type == "Overloaded"
                            refused += 1
                            await anyio.sleep(0.01)
                    while server.statistics().connections > 2:  # it alone was cut off
                        await anyio.sleep(0.001)
                    assert server.statistics().connections == 2


async def test_reassembly(url: str) -> None:
    """One connection's long requests take turns in what half-received messages may hold."""
    limits: dict[str, Any] = {"max_message": SMALL, "segment": 4096, "reassembly": SMALL}
    long, held = bytes(60_000), list[int]()

    async def watch(request: bytes) -> bytes:
        for session in server._sessions:
            budget = session.reassembly._budget
            held.append(budget.used_bytes)
        return request[:1]

    async with l5.serve(watch, url, **limits) as server:
        async with await l5.connect(server.urls[0], ring=SMALL) as client:
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    assert await client.request(long) == long[:1]

                for _ in range(20):
                    tasks.start_soon(ask)
    assert SMALL // 2 < max(held) <= 2 * SMALL + 4
