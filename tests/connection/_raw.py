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
from l5._frames import HEADER_BYTES, Flag, Kind, pack_header, parse_header
from l5._hello import ClientHello, Hello, HelloReader, Offer, encode
from tests.pure._hellos import LIMITS, NUMBERS, PROOF

__all__ = [
    "NOT_UPGRADED",
    "Peer",
    "ask",
    "client_hello",
    "envelope",
    "frame",
    "raw",
    "raw_server",
    "read_hello",
]


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


def frame(kind: int, id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return pack_header(len(payload), kind, flags, id) + payload


def ask(id: int, payload: bytes = b"q") -> bytes:
    return frame(Kind.REQUEST, id, payload)


class Peer:
    """A raw peer that has shaken hands: sends bytes, receives frames."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self.data = b""

    async def frame(self) -> tuple[int, int, bytes]:
        """Return kind, id and payload of the next message that is no heartbeat."""
        parts: dict[int, bytes] = {}
        while True:
            while len(self.data) < HEADER_BYTES or len(self.data) < HEADER_BYTES + self._size():
                self.data += await self.stream.receive()
            header = parse_header(self.data, 0, 1 << 20)
            end = HEADER_BYTES + header.size_bytes
            payload, self.data = self.data[HEADER_BYTES:end], self.data[end:]
            payload = parts.pop(header.id, b"") + payload
            if header.flags & Flag.MORE:
                parts[header.id] = payload
            elif header.kind != Kind.HEARTBEAT:
                return header.kind, header.id, payload

    def _size(self) -> int:
        return int.from_bytes(self.data[:4], "little")

    async def answers(self, count: int) -> list[tuple[int, bytes]]:
        got = [await self.frame() for _ in range(count)]
        assert {kind for kind, _, _ in got} <= {Kind.RESPONSE}
        return [(id, payload) for _, id, payload in got]
