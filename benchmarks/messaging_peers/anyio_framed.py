"""anyio's byte streams, with the framing of `l5`: 16 bytes of header before each message."""

import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from benchmarks.messaging_peers.loops import Request

HEADER = struct.Struct("<IBBHQ")
HEADER_BYTES = HEADER.size
REQUEST, RESPONSE = 2, 3


class Framed:
    """Whole messages over a byte stream; usually one comes by one read."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._send = stream.send
        self._receive = stream.receive
        self._rest = b""

    async def send(self, kind: int, id: int, payload: bytes) -> None:
        await self._send(HEADER.pack(len(payload), kind, 0, 0, id) + payload)

    async def receive(self) -> tuple[int, int, bytes]:
        data = self._rest or await self._receive()
        while len(data) < HEADER_BYTES:
            data += await self._receive()
        size, kind, _flags, _reserved, id = HEADER.unpack_from(data)
        end = HEADER_BYTES + size
        while len(data) < end:
            data += await self._receive()
        self._rest = data[end:]
        return kind, id, data[HEADER_BYTES:end]


async def echo(stream: anyio.abc.ByteStream) -> None:
    framed = Framed(stream)
    async with stream:
        try:
            while True:
                _, id, payload = await framed.receive()
                await framed.send(RESPONSE, id, payload)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    if options["over"] == "tcp":
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        address = str(listener.extra(anyio.abc.SocketAttribute.local_port))
    else:
        listener = await anyio.create_unix_listener(address)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo)
        yield address
        group.cancel_scope.cancel()


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    over_tcp = options["over"] == "tcp"
    connecting = (
        anyio.connect_tcp("127.0.0.1", int(address)) if over_tcp else anyio.connect_unix(address)
    )
    async with await connecting as stream:
        framed = Framed(stream)
        sent = 0

        async def request(payload: bytes) -> bytes:
            nonlocal sent
            sent += 1
            await framed.send(REQUEST, sent, payload)
            kind, id, reply = await framed.receive()
            if kind != RESPONSE or id != sent:
                raise RuntimeError(f"answer {id} of kind {kind} to request {sent}")
            return reply

        yield request
