"""redis-py on asyncio with hiredis, and a Redis server of its own on a Unix socket: ECHO."""

import ctypes
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import redis.asyncio

from benchmarks.messaging_peers.loops import Request

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def started(address: str) -> Generator[None]:
    """Run a server that keeps nothing on disk and listens on no port."""
    words = ["--port", "0", "--unixsocket", address, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        ["redis-server", *words, "--dir", str(Path(address).parent)],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    with started(address):
        with anyio.fail_after(10):
            while not Path(address).exists():  # noqa: ASYNC110, ASYNC240 - another program makes it
                await anyio.sleep(0.01)
        yield address


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    connected = redis.asyncio.Redis(unix_socket_path=address, single_connection_client=True)
    async with connected as speaker:
        echo: Any = speaker.echo

        async def request(payload: bytes) -> bytes:
            return await echo(payload)

        yield request
