"""pynng on asyncio or trio: Req0 and Rep0 over ipc, which it serves to both loops itself."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pynng

from benchmarks.messaging_peers.loops import Request


async def echo(replier: Any) -> None:
    while True:
        await replier.asend(await replier.arecv())


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    with pynng.Rep0(listen=f"ipc://{address}") as replier:
        async with anyio.create_task_group() as group:
            group.start_soon(echo, replier)
            yield f"ipc://{address}"
            group.cancel_scope.cancel()


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    with pynng.Req0(dial=address) as requester:
        send, receive = requester.asend, requester.arecv

        async def request(payload: bytes) -> bytes:
            await send(payload)
            return await receive()

        yield request
