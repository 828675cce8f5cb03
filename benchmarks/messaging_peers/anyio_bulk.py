"""anyio's byte streams (asyncio, uvloop, trio), one way over a Unix socket."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled
from benchmarks.messaging_peers.sockets_bulk import set_buffers


async def drain(stream: anyio.abc.SocketStream) -> None:
    set_buffers(stream.extra(anyio.abc.SocketAttribute.raw_socket))
    async with stream:
        try:
            while True:
                left = int.from_bytes(await stream.receive(8), "little")
                while left:
                    left -= len(await stream.receive(min(left, CHUNK_BYTES)))
                await stream.send(DONE)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    listener = await anyio.create_unix_listener(address)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, drain)
        yield address
        group.cancel_scope.cancel()


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    chunk = bytes(filled(CHUNK_BYTES))
    size = options["transfer_bytes"]
    async with await anyio.connect_unix(address) as stream:
        set_buffers(stream.extra(anyio.abc.SocketAttribute.raw_socket))

        async def transfer() -> int:
            await stream.send(size.to_bytes(8, "little"))
            for _ in range(size // CHUNK_BYTES):
                await stream.send(chunk)
            if await stream.receive(1) != DONE:
                raise RuntimeError("the receiver lost count")
            return size

        yield transfer
