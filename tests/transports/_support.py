"""Pairs of links and channels, and a patient reader, for the tests of the socket transports."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from l5._address import parse
from l5._errors import RemoteProtocolError
from l5._options import ListenOptions, Options
from l5.abc import BootstrapTransport, Channel, Frame, Link
from l5.transports._stream import StreamChannel
from l5.transports.inproc import InprocTransport
from l5.transports.tcp import TCPTransport
from l5.transports.unix import UnixTransport

SCHEMES = ("l5", "l5s", "l5+tcp", "l5+unix", "l5+inproc")
LIMIT = 4096

KINDS: dict[str, Callable[[Path], tuple[BootstrapTransport, str]]] = {
    "tcp": lambda folder: (TCPTransport(), "l5://127.0.0.1:0"),
    "unix": lambda folder: (UnixTransport(), f"l5+unix://{folder}/sock"),
    "abstract": lambda folder: (UnixTransport(), f"l5+unix://@{folder.name}-l5-test"),
    "inproc": lambda folder: (InprocTransport(), "l5+inproc://test"),
}


def address(url: str):
    return parse(url, SCHEMES, allow_port_zero=True)


@asynccontextmanager
async def linked(kind: str, folder: Path) -> AsyncIterator[tuple[Link, Link]]:
    """A connected pair, the client's link first."""
    transport, url = KINDS[kind](folder)
    listener = await transport.listen(address(url), ListenOptions())
    try:
        client = await transport.connect(address(listener.url), Options())
        server = await listener.accept()
        try:
            yield client, server
        finally:
            client.abort()
            server.abort()
    finally:
        listener.close()


@asynccontextmanager
async def channels(
    kind: str, folder: Path, *, limit: int = LIMIT
) -> AsyncIterator[tuple[Channel, Channel]]:
    async with linked(kind, folder) as links:
        near, far = (link.into_channel(send_limit=limit, receive_limit=limit) for link in links)
        try:
            yield near, far
        finally:
            near.close()
            far.close()


def raw_pair(*, limit: int = LIMIT) -> tuple[socket.socket, StreamChannel]:
    """A plain socket and a channel at its other end."""
    raw, other = socket.socketpair()
    other.setblocking(False)
    return raw, StreamChannel(other, "unix", send_limit=limit, receive_limit=limit)


async def receive(channel: Channel) -> Frame:
    """Wait for the next frame as the hub does: poll, arm, poll again, sleep."""
    while True:
        frame = channel.try_receive()
        if frame is not None:
            return frame
        if channel.arm():
            await anyio.wait_readable(channel.fileno())
            channel.disarm()
            channel.on_event()


def refused(channel: Channel, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        channel.try_receive()
