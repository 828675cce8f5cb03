"""One end is killed, in every state: the other gets the right error and nothing is left behind.

That nothing is left (descriptors, mappings, children) is checked after every test by the fixture
`no_leaks`.  There are no bounds on times: a test that hangs is ended by pytest's timeout.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream

import l5

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.anyio


class Peer:
    """A process of `_peer.py`."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = TextReceiveStream(process.stdout)
        self._text = ""

    async def says(self, word: str) -> str:
        """Wait for a line that begins so; return its rest."""
        while True:
            while "\n" not in self._text:
                self._text += await self._lines.receive()
            line, self._text = self._text.split("\n", 1)
            if line.startswith(word):
                return line[len(word) :].strip()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def peer(role: str, url: str) -> AsyncIterator[Peer]:
    command = [sys.executable, "-m", "tests.process._peer", role, url]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        try:
            yield Peer(process)
        finally:
            if process.returncode is None:
                process.kill()


@pytest.fixture(params=["unix", "tcp", "shm", "shm-from-tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = os.path.relpath(tmp_path / "s", ROOT) if len(str(tmp_path)) > 90 else str(tmp_path / "s")
    return {
        "unix": f"l5+unix://{path}?transports=unix",
        "tcp": "l5+tcp://127.0.0.1:0",
        "shm": f"l5+shm://{path}",
        "shm-from-tcp": "l5://127.0.0.1:0",
    }[request.param]


@pytest.mark.parametrize("state", ["idle", "receiving", "sending", "sending long", "requesting"])
async def test_the_server_is_killed(url: str, state: str) -> None:
    roles = {"idle": "sink", "receiving": "sink", "sending": "sink", "requesting": "serve"}
    async with peer(roles.get(state, "clog"), url) as server:
        at = await server.says("at")
        async with await l5.connect(at) as client:

            async def work() -> None:
                with pytest.raises(anyio.BrokenResourceError):
                    while True:
                        if state == "receiving":
                            await client.receive()
                        elif state == "sending":
                            await client.send(bytes(1000))
                        elif state == "sending long":
                            await client.send(bytes(10_000_000))
                        else:
                            await client.request(b"wait")

            if state == "idle":
                await server.kill()
                with pytest.raises(anyio.BrokenResourceError):
                    await client.receive()
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(work)
                    if state == "requesting":
                        await server.says("waiting")
                    else:
                        await anyio.sleep(0.02)
                    await server.kill()
            for _ in range(2):
                with pytest.raises(anyio.BrokenResourceError):
                    await client.request(b"x")


@pytest.mark.parametrize("state", ["idle", "receive", "send"])
async def test_the_client_is_killed(url: str, state: str) -> None:
    ended = anyio.Event()

    async def on_connection(connection: l5.Connection) -> None:
        with pytest.raises(anyio.BrokenResourceError):
            while True:
                if state == "receive":
                    await connection.send(bytes(1000))
                else:
                    await connection.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await connection.send(b"x")
        ended.set()

    async with l5.serve(on_connection, url, per="connection") as server:
        async with peer(state, server.urls[0]) as client:
            await client.says("connected")
            await anyio.sleep(0.02)
            await client.kill()
            await ended.wait()
        while server.statistics().connections:
            await anyio.sleep(0.001)


async def test_the_client_is_killed_in_a_request(url: str) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def handle(request: bytes) -> bytes:
        if request == b"wait":
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()
        return request

    async with l5.serve(handle, url) as server:
        async with peer("request", server.urls[0]) as client:
            await begun.wait()
            await client.kill()
            await ended.wait()
        while server.statistics().connections:
            await anyio.sleep(0.001)
        async with await l5.connect(server.urls[0]) as other:
            assert await other.request(b"sound") == b"sound"


async def test_an_heir_of_a_dead_server_holds_the_socket(tmp_path: Path) -> None:
    """End of file never comes; the end of the process is noticed all the same."""
    async with peer("clog+heir", f"l5+shm://{tmp_path}/s") as server:
        at = await server.says("at")
        async with await l5.connect(at) as client:
            heir = int(await server.says("heir"))
            try:
                await server.kill()
                with pytest.raises(anyio.BrokenResourceError):
                    await client.receive()
            finally:
                os.kill(heir, signal.SIGKILL)


async def test_an_heir_of_a_dead_client_holds_the_socket(tmp_path: Path) -> None:
    ended = anyio.Event()

    async def on_connection(connection: l5.Connection) -> None:
        with pytest.raises(anyio.BrokenResourceError):
            await connection.receive()
        ended.set()

    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(on_connection, url, per="connection") as server:
        async with peer("idle+heir", server.urls[0]) as client:
            heir = int(await client.says("heir"))
            try:
                await client.kill()
                await ended.wait()
            finally:
                os.kill(heir, signal.SIGKILL)


async def test_a_killed_server_leaves_a_path_for_the_next(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    async with peer("serve", url) as server:
        await server.says("at")
        await server.kill()
    assert os.listdir(tmp_path) == ["s"]

    async def handle(request: bytes) -> bytes:
        return request

    async with l5.serve(handle, url), await l5.connect(url) as client:
        assert await client.request(b"x") == b"x"
    assert os.listdir(tmp_path) == []
