"""Peers that say what no peer of ours would, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import attrs
import msgspec

from l5._bootstrap import NOT_UPGRADED
from l5._hello import ClientHello, Hello, HelloReader, Offer, encode
from tests.pure._hellos import LIMITS, NUMBERS, PROOF

__all__ = ["NOT_UPGRADED", "client_hello", "envelope", "raw", "raw_server", "read_hello"]


def client_hello(**changes: object) -> ClientHello:
    hello = ClientHello(
        versions=[1], limits=LIMITS, offers=[Offer(transport="shm")], host=PROOF, pid=1, uid=0
    )
    return msgspec.structs.replace(hello, **changes)


def envelope(payload: bytes, *, name: str = "ClientHello", size: int | None = None) -> bytes:
    """A hello with any payload, and with any size in its prefix."""
    length = len(payload) if size is None else size
    return struct.pack("<2sBBI", b"L5", 1, NUMBERS[name], length) + payload


async def _connect(url: str) -> anyio.abc.SocketStream:
    scheme, _, place = url.partition("://")
    place = place.partition("?")[0]
    if scheme.endswith("unix") or scheme.endswith("shm"):
        return await anyio.connect_unix(place.replace("@", "\0", 1))
    host, _, port = place.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[anyio.abc.SocketStream]:
    async with await _connect(url) as stream:
        yield stream


async def read_hello(stream: anyio.abc.ByteReceiveStream) -> Hello:
    reader = HelloReader()
    while (message := reader.next()) is None:
        reader.feed(await stream.receive(reader.needed_bytes()))
    return message


@attrs.frozen
class RawServer:
    url: str
    heard: list[Hello]


@asynccontextmanager
async def raw_server(
    answer: Callable[[anyio.abc.SocketStream, Hello], Awaitable[None]],
) -> AsyncIterator[RawServer]:
    """A TCP server that reads a hello, and does what it likes with it."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = RawServer(f"l5://127.0.0.1:{port}", [])

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            hello = await read_hello(stream)
            server.heard.append(hello)
            try:
                await answer(stream, hello)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle, group)
        yield server
        group.cancel_scope.cancel()


def sent(message: Hello) -> Callable[[anyio.abc.SocketStream, Hello], Awaitable[None]]:
    """Answer with a message and wait for the end."""

    async def answer(stream: anyio.abc.SocketStream, _: Hello) -> None:
        await stream.send(encode(message))
        while True:
            await stream.receive()

    return answer
