"""Streams of asyncio (or uvloop) on a Unix socket; messages have a fixed size, so no framing.

`drain` is left out: with one request outstanding there is never more than one message to drain.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.messaging_peers.loops import PAYLOAD, Request


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = len(PAYLOAD)
    try:
        while True:
            writer.write(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    async with await asyncio.start_unix_server(echo, address):
        yield address


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    reader, writer = await asyncio.open_unix_connection(address)
    write, readexactly = writer.write, reader.readexactly

    async def request(payload: bytes) -> bytes:
        write(payload)
        return await readexactly(len(payload))

    yield request
    writer.close()
