"""trio's streams on a Unix socket; messages have a fixed size, so no framing."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from benchmarks.messaging_peers.loops import PAYLOAD, Request


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end."""
    data = await stream.receive_some(size)
    while 0 < len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            break
        data += more
    return data


async def echo(stream: trio.SocketStream) -> None:
    async with stream:
        while data := await receive_exactly(stream, len(PAYLOAD)):
            await stream.send_all(data)


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    sock = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await sock.bind(address)
    sock.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, echo, [trio.SocketListener(sock)]))
        yield address
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    async with await trio.open_unix_socket(address) as stream:

        async def request(payload: bytes) -> bytes:
            await stream.send_all(payload)
            return await receive_exactly(stream, len(payload))

        yield request
