"""`l5`, one way, with the size of the chunks given for each transfer: what `benchmarks.fig6` asks.

A transfer begins with the number of chunks and ends with one word back.
"""

import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import l5
from benchmarks.messaging_peers.memory import DONE, filled
from benchmarks.messaging_peers.ours import expect_transport, keywords, url
from benchmarks.messaging_peers.ours_bulk import take_bytes, take_copies

COUNT = struct.Struct("<QQ")


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    place = filled(options["chunk_max_bytes"])
    take = {"bytes": take_bytes, "copies": take_copies}[options["take"]]

    async def sink(connection: l5.Connection) -> None:
        async for told in connection:
            count, size = COUNT.unpack(told)
            await take(connection, count, [place[:size]])
            await connection.send(DONE)

    ring = options["ring"]
    async with l5.serve(
        sink, url(address, options), per="connection", max_ring=ring, **keywords(options)
    ) as running:
        yield running.urls[0]


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[..., Awaitable[int]]]:
    source = filled(options["chunk_max_bytes"])

    async with await l5.connect(address, **keywords(options)) as connection:
        expect_transport(connection, options)

        async def transfer(chunk_bytes: int, transfer_bytes: int) -> int:
            chunk, count = source[:chunk_bytes], transfer_bytes // chunk_bytes
            await connection.send(COUNT.pack(count, chunk_bytes))
            for _ in range(count):
                await connection.send(chunk)
            if await connection.receive() != DONE:
                raise RuntimeError("the receiver lost count")
            return count * chunk_bytes

        yield transfer
