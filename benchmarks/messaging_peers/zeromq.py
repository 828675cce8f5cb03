"""pyzmq on asyncio: REQ and REP over ipc."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import zmq
import zmq.asyncio

from benchmarks.messaging_peers.loops import Request


async def echo(replier: Any) -> None:
    while True:
        await replier.send(await replier.recv())


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    with zmq.asyncio.Context() as context, context.socket(zmq.REP) as replier:
        replier.bind(f"ipc://{address}")
        async with anyio.create_task_group() as group:
            group.start_soon(echo, replier)
            yield f"ipc://{address}"
            group.cancel_scope.cancel()


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    with zmq.asyncio.Context() as context, context.socket(zmq.REQ) as requester:
        requester.connect(address)
        send, recv = requester.send, requester.recv

        async def request(payload: bytes) -> bytes:
            await send(payload)
            return await recv()

        yield request
