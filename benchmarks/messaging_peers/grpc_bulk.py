"""gRPC on asyncio, one way over a Unix socket: a stream of chunks in one call.

A message may be as large as a chunk, so its limit of 4 MiB is not in the way.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled


async def drain(requests: AsyncIterator[bytes], context: Any) -> bytes:
    async for _ in requests:
        pass
    return DONE


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    running = grpc.aio.server()
    methods = {"Drain": grpc.stream_unary_rpc_method_handler(drain)}
    running.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Bench", methods)])
    running.add_insecure_port(f"unix:{address}")
    await running.start()
    yield f"unix:{address}"
    await running.stop(None)


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    chunk = bytes(filled(CHUNK_BYTES))
    count = options["transfer_bytes"] // CHUNK_BYTES
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_unary("/Bench/Drain")

        async def transfer() -> int:
            sending = call()
            for _ in range(count):
                await sending.write(chunk)
            await sending.done_writing()
            if await sending != DONE:
                raise RuntimeError("the receiver lost count")
            return count * CHUNK_BYTES

        yield transfer
