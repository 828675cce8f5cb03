"""uvloop, one way over a Unix socket: a BufferedProtocol receives, a stream sends chunks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled, views
from benchmarks.messaging_peers.sockets_bulk import set_buffers


class Sink(asyncio.BufferedProtocol):
    """Receive into one buffer, and answer when as many bytes have come as the first eight say."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(2 * CHUNK_BYTES))
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        set_buffers(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._left:
            self._left = int.from_bytes(self._buffer[:8], "little")
            nbytes -= 8
        self._left -= nbytes
        if not self._left:
            self._transport.write(DONE)


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    loop = asyncio.get_running_loop()
    async with await loop.create_unix_server(Sink, address):
        yield address


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    [chunk] = views(filled(CHUNK_BYTES))
    size = options["transfer_bytes"]
    reader, writer = await asyncio.open_unix_connection(address)
    set_buffers(writer.get_extra_info("socket"))
    writer.transport.set_write_buffer_limits(high=8 * CHUNK_BYTES)

    async def transfer() -> int:
        writer.write(size.to_bytes(8, "little"))
        for _ in range(size // CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if await reader.readexactly(1) != DONE:
            raise RuntimeError("the receiver lost count")
        return size

    yield transfer
    writer.close()
