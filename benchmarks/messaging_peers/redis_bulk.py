"""redis-py on asyncio with hiredis, one way: SET of chunks, eight in a pipeline."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio

from benchmarks.messaging_peers.memory import CHUNK_BYTES, filled
from benchmarks.messaging_peers.redis_aio import server

__all__ = ["client", "server"]
IN_A_PIPELINE = 8


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    chunk = bytes(filled(CHUNK_BYTES))
    times = options["transfer_bytes"] // CHUNK_BYTES // IN_A_PIPELINE
    connected = redis.asyncio.Redis(unix_socket_path=address, single_connection_client=True)
    async with connected as speaker:

        async def transfer() -> int:
            for _ in range(times):
                pipeline: Any = speaker.pipeline(transaction=False)
                for key in range(IN_A_PIPELINE):
                    pipeline.set(key, chunk)
                if await pipeline.execute() != [True] * IN_A_PIPELINE:
                    raise RuntimeError("the receiver lost count")
            return times * IN_A_PIPELINE * CHUNK_BYTES

        yield transfer
