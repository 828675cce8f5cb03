"""Hellos that attack: in masses, silent, slow, half, with a used ticket, of another user.

Malformed hellos and answers, and most of what a single socket can do, are in
tests/connection/test_handshake_*.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import l5
from tests.attacks._actors import Stage
from tests.attacks._support import bystander, held, until

pytestmark = pytest.mark.anyio

ROOM = 100


def place_of(server: l5.Server) -> str:
    """Return how `_hellos.reach` finds a server."""
    url = server.urls[0].partition("?")[0].rpartition(":")[2]
    return url.removeprefix("//")


async def upper(request: bytes) -> bytes:
    return request if request.startswith(b"e ") else request.upper()


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncGenerator[l5.Server]:
    """A server with a client that is served all the while, and that is the last one in the end."""
    async with l5.serve(upper, url, **options) as server, bystander(server.urls[0]) as some_more:
        yield server
        await some_more()
        await until(lambda: server.statistics().connections == 1)


@pytest.mark.parametrize("url", ["unix", "tcp"], indirect=True)
async def test_a_thousand_hellos_at_once(url: str, stage: Stage) -> None:
    """As many are served as there is room for, the others are told; nothing is left of them."""
    async with serving(url, connections_max=ROOM, backlog=1024, hello_timeout=60.0) as server:
        before = held()
        async with stage.actor("_hellos:storm", place_of(server), 1000) as client:
            await client.says("sent")
            assert await client.says("found") == f"busy={1001 - ROOM} served={ROOM - 1}"
            assert server.statistics().connections == ROOM
        await until(lambda: server.statistics().connections == 1 and held() == before)


@pytest.mark.parametrize("spoken", [0, 12])
async def test_who_is_silent_makes_room(stage: Stage, spoken: int) -> None:
    """All places of the handshake are taken by strangers: the oldest goes, the others may stay."""
    async with serving("l5+tcp://127.0.0.1:0", hellos_max=4, hello_timeout=4.0) as server:
        async with stage.actor("_hellos:keep_silent", place_of(server), 4, spoken) as strangers:
            await strangers.says("silent")
            async with await l5.connect(server.urls[0], hello_timeout=60.0) as client:
                assert await client.request(b"new") == b"NEW"
            told = await strangers.says("told")
            assert told.startswith("busy others wait for their turn")
            assert server.statistics().rejected == 1


async def test_who_is_silent_at_the_rendezvous_makes_room(stage: Stage) -> None:
    async with serving("l5://127.0.0.1:0", hellos_max=4, hello_timeout=4.0) as server:
        rendezvous = server._acceptor.tickets.address
        async with stage.actor("_hellos:keep_silent", rendezvous, 4, 0) as strangers:
            await strangers.says("silent")
            async with await l5.connect(server.urls[0], hello_timeout=60.0) as client:
                assert client.transport == "shm"
            await strangers.says("closed")


@pytest.mark.parametrize("how", ["slow", "half"])
async def test_a_server_that_never_finishes_its_hello(stage: Stage, how: str) -> None:
    """Byte by byte is no progress that counts: the time is for all of it."""
    async with stage.actor("_hellos:listen", how) as server:
        url = f"l5://127.0.0.1:{await server.says('at')}"
        with pytest.raises(l5.ConnectError, match=r"no connection within 0\.3 s"):
            await l5.connect(url, connect_timeout=0.3)
        await server.ends()  # as soon as the client hangs up
    async with stage.actor("_hellos:listen", "half") as server:
        url = f"l5://127.0.0.1:{await server.says('at')}"
        with pytest.raises(l5.ConnectError, match=r"did not finish its hello within 0\.1 s"):
            await l5.connect(url, hello_timeout=0.1)


async def test_a_server_that_keeps_the_memory_and_is_silent(stage: Stage, tmp_path: Path) -> None:
    """The client gives up, and nothing is left of the memory at its end (`no_leaks`)."""
    told: list[str] = []
    for patience_s in (0.2, 2.0, 20.0):  # a busy machine may need the first for the hello itself
        async with stage.actor("_hellos:stop_in_the_upgrade", f"{tmp_path}/{patience_s}") as server:
            await server.says("at")
            with pytest.raises(l5.ConnectError, match=rf"within {patience_s:g} s"):
                await l5.connect(f"l5+shm://{tmp_path}/{patience_s}", connect_timeout=patience_s)
            told = await server.ends()
        if told:
            break
    assert told == ["holds 1", "left alone"]


async def test_a_ticket_of_another_process(stage: Stage) -> None:
    """Whoever saw it on the wire comes too late, and the connection that it was for goes on."""
    async with serving("l5://127.0.0.1:0") as server:
        async with stage.actor("_hellos:meet", place_of(server)) as owner:
            rendezvous, ticket = (await owner.says("ticket")).split()
            for _ in range(2):
                async with stage.actor("_hellos:replay", rendezvous, ticket) as thief:
                    assert await thief.says() == "closed"
                await owner.tell("ask")
                assert await owner.says("served") == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
async def test_another_user(stage: Stage) -> None:
    """The socket's mode keeps it out; where that lets it in, the uid that the kernel names does."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        closed, opened, allowed = (f"l5+unix://{folder}/{name}" for name in ("a", "b", "c"))
        async with (
            serving(closed),
            serving(opened),
            serving(allowed, allow_uids={0, 65534}),
        ):
            for name in ("b", "c"):
                os.chmod(f"{folder}/{name}", 0o666)
            urls = [closed, opened, allowed]
            async with stage.actor("_hellos:be_nobody", urls) as nobody:
                assert "this user may not connect" in await nobody.says("refused")
                assert "uid 65534 may not connect here" in await nobody.says("refused")
                assert await nobody.says("served") == "over shm"
