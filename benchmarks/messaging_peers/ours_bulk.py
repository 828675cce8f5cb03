"""`l5`, one way: messages of one chunk each, then one word back."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import l5
from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled, views
from benchmarks.messaging_peers.ours import expect_transport, keywords, url


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    take = TAKES[options["take"]]
    places = views(filled(options["target_bytes"]))

    async def sink(connection: l5.Connection) -> None:
        async for count in connection:
            await take(connection, int.from_bytes(count, "little"), places)
            await connection.send(DONE)

    async with l5.serve(
        sink, url(address, options), per="connection", **keywords(options)
    ) as running:
        yield running.urls[0]


async def take_bytes(connection: l5.Connection, count: int, places: list[memoryview]) -> None:
    for _ in range(count):
        await connection.receive()


async def take_views(connection: l5.Connection, count: int, places: list[memoryview]) -> None:
    for _ in range(count):
        async with connection.lease() as message:
            message.view.release()


async def take_copies(connection: l5.Connection, count: int, places: list[memoryview]) -> None:
    for number in range(count):
        async with connection.lease() as message:
            with message.view as view:
                places[number % len(places)][:] = view


async def take_into(connection: l5.Connection, count: int, places: list[memoryview]) -> None:
    for number in range(count):
        await connection.receive_into(places[number % len(places)])


TAKES = {"bytes": take_bytes, "views": take_views, "copies": take_copies, "into": take_into}


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    chunks = views(filled(options["source_bytes"]))
    chunks *= options["transfer_bytes"] // CHUNK_BYTES // len(chunks)

    async with await l5.connect(address, **keywords(options)) as connection:
        expect_transport(connection, options)

        async def transfer() -> int:
            await connection.send(len(chunks).to_bytes(8, "little"))
            for chunk in chunks:
                await connection.send(chunk)
            if await connection.receive() != DONE:
                raise RuntimeError("the receiver lost count")
            return len(chunks) * CHUNK_BYTES

        yield transfer
