"""TCP addresses, options of the sockets, and TLS."""

import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs
import pytest
import trustme

from l5._errors import AddressError, RemoteProtocolError
from l5._frames import Kind
from l5._options import ListenOptions, Options
from l5.abc import Channel, Link
from l5.transports import tcp
from l5.transports._tls import TLSSocket
from l5.transports.tcp import TCPTransport
from tests.transports._support import LIMIT, address, linked, receive

pytestmark = pytest.mark.anyio


async def test_small_frames_leave_at_once(tmp_path: Path) -> None:
    async with linked("tcp", tmp_path) as links:
        for link in links:
            assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]"])
async def test_hosts(host: str) -> None:
    transport = TCPTransport()
    listener = await transport.listen(address(f"l5://{host}:0"), ListenOptions())
    assert listener.url.startswith(f"l5://{host}:")
    assert not listener.url.endswith(":0")
    link = await transport.connect(address(listener.url), Options())
    other = await listener.accept()
    assert link.peer.loopback
    await link.send(b"hello")
    assert await other.receive(10) == (b"hello", [])
    for one in (link, other, listener):
        one.close() if one is listener else one.abort()


async def test_a_host_of_several_addresses_has_one_port() -> None:
    transport = TCPTransport()

    async def resolve(*_: object, **__: object) -> list[tuple[int, tuple[str, int]]]:
        return [(int(socket.AF_INET), (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp, "_resolve", resolve)
        listener = await transport.listen(address("l5+tcp://two:0?spin_us=1"), ListenOptions())
    port = address(listener.url).port
    assert listener.url == f"l5+tcp://two:{port}"
    for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"):
        client = await transport.connect(address(f"l5://{host}:{port}"), Options())
        server = await listener.accept()
        assert server._socket.getsockname() == (host, port)
        client.abort()
        server.abort()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await listener.accept()

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        listener.close()


async def test_a_port_that_is_taken_at_one_address_is_chosen_again() -> None:
    targets = [(int(socket.AF_INET), ("127.0.0.1", 0)), (int(socket.AF_INET), ("127.0.0.2", 0))]
    taken: list[socket.socket] = []
    original = tcp._bind_one

    def bind(family: int, name: tuple[str, int]) -> socket.socket:
        if name[0] == "127.0.0.2" and not taken:
            taken.append(socket.create_server(name))
        return original(family, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp, "_bind_one", bind)
        sockets = tcp._bind_all(targets)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in (*sockets, *taken):
        sock.close()


async def test_connect_errors_name_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: Connection refused") as caught:
            await TCPTransport().connect(address(f"l5://127.0.0.1:{port}"), Options())
        assert caught.value.errno == errno.ECONNREFUSED
    with pytest.raises(OSError, match=r"cannot find host 'nowhere\.invalid'"):
        await TCPTransport().connect(address("l5://nowhere.invalid:1"), Options())


async def test_every_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    family = int(socket.AF_INET)

    async def resolve(*_: object, **__: object) -> list[tuple[int, tuple[str, int]]]:
        return [(family, (host, port)) for host in ("127.0.0.2", "127.0.0.3", "127.0.0.1")]

    monkeypatch.setattr(tcp, "_resolve", resolve)
    link = await TCPTransport().connect(address(f"l5://name:{port}"), Options())
    assert link.peer.address == f"127.0.0.1:{port}"
    link.abort()
    server.close()
    with pytest.raises(OSError, match=r"127\.0\.0\.2:.*; 127\.0\.0\.3:.*; 127\.0\.0\.1:"):
        await TCPTransport().connect(address(f"l5://name:{port}"), Options())


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    original = tcp._connect_one

    async def resolve(*_: object, **__: object) -> list[tuple[int, tuple[str, int]]]:
        return [(int(socket.AF_INET), ("silent", 1)), (int(socket.AF_INET), server.getsockname())]

    async def connect(target: tuple[int, tuple[str, int]]) -> socket.socket:
        if target[1][0] == "silent":
            await anyio.sleep_forever()
        return await original(target)

    monkeypatch.setattr(tcp, "_resolve", resolve)
    monkeypatch.setattr(tcp, "_connect_one", connect)
    link = await TCPTransport().connect(address("l5://x:1"), Options(connect_timeout=0.2))
    link.abort()
    server.close()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert tcp._is_loopback(host) is loopback
    assert ipaddress.ip_address(host)


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def tls_links(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> AsyncIterator[tuple[Link, Link]]:
    transport = TCPTransport()
    listener = await transport.listen(
        address("l5s://127.0.0.1:0"), ListenOptions(ssl_context=server_context)
    )
    links: list[Link] = []

    async def accept() -> None:
        link = await listener.accept()
        links.append(link)
        assert await link.receive(5) == (b"hello", [])

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(accept)
            client = await transport.connect(
                address(listener.url), Options(ssl_context=client_context)
            )
            links.append(client)
            await client.send(b"hello")
        yield client, links[0]
    finally:
        for link in links:
            link.abort()
        listener.close()


async def test_tls_links(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
    async with tls_links(server_context, client_context) as (client, server):
        assert client.peer.tls
        assert server.peer.tls
        assert not client.passes_fds
        data = os.urandom(2_000_000)
        received = bytearray()
        async with anyio.create_task_group() as group:
            group.start_soon(server.send, data)
            while len(received) < len(data):
                chunk, _ = await client.receive(70_000)
                received += chunk
        assert received == data
        with pytest.raises(ValueError, match="cannot pass descriptors"):
            await client.send(b"x", [0])
        with pytest.raises(ValueError, match="cannot be given up"):
            client.detach()
        server.abort()
        with pytest.raises(anyio.EndOfStream):
            await client.receive(1)


@pytest.mark.parametrize("limit", [LIMIT, 500_000])
async def test_tls_channels(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext, limit: int
) -> None:
    sizes = [0, 1, limit - 1, limit, 16384 % limit, 17000 % limit] * 5
    async with tls_links(server_context, client_context) as links:
        near, far = (link.into_channel(send_limit=limit, receive_limit=limit) for link in links)

        async def send(channel: Channel) -> None:
            for number, size in enumerate(sizes):
                while not channel.try_send(Kind.DATA, 0, number, bytes([number]) * size):
                    assert channel.wants_write
                    await anyio.wait_writable(channel.fileno())
                    channel.flush()
            while channel.wants_write:
                await anyio.wait_writable(channel.fileno())
                channel.flush()

        async def check(channel: Channel) -> None:
            for number, size in enumerate(sizes):
                got = await receive(channel)
                assert (got.id, got.payload) == (number, bytes([number]) * size)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for channel in (near, far):
                    group.start_soon(send, channel)
                    group.start_soon(check, channel)
        near.close()
        with pytest.raises(anyio.EndOfStream):
            await receive(far)
        far.close()


async def test_what_tls_has_decrypted_counts_as_here(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with tls_links(server_context, client_context) as links:
        near, far = (link.into_channel(send_limit=LIMIT, receive_limit=LIMIT) for link in links)
        for number in range(20):
            assert near.try_send(Kind.DATA, 0, number, bytes(1000))
        await anyio.wait_readable(far.fileno())
        far.on_event()
        seen = 0
        while far.try_receive() is not None:
            seen += 1
        while seen < 20:
            assert far.arm()
            with anyio.fail_after(60):
                await anyio.wait_readable(far.fileno())
            far.on_event()
            while far.try_receive() is not None:
                seen += 1
        # Now with frames left behind in each of the layers: arm must refuse.
        for number in range(20):
            assert near.try_send(Kind.DATA, 0, number, bytes(1000))
        for _ in range(20):
            await receive(far)
            before = far._tls.buffered or far.poll()
            assert far.arm() is not before
        near.close()
        far.close()


async def test_a_clogged_tls_peer_costs_little(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with tls_links(server_context, client_context) as links:
        near, far = (link.into_channel(send_limit=LIMIT, receive_limit=LIMIT) for link in links)
        count = 0
        while near.try_send(Kind.DATA, 0, count, bytes(LIMIT)):
            count += 1
            assert count < 10_000
        assert near.wants_write
        assert near._rest is None
        assert len(near._tls._unsent) + near._tls._outgoing.pending < 2 * LIMIT
        near.close()
        far.close()


async def test_tls_needs_a_certificate_to_listen() -> None:
    with pytest.raises(AddressError, match=r"needs a certificate: pass ssl_context="):
        await TCPTransport().listen(address("l5s://127.0.0.1:0"), ListenOptions())


async def test_an_unknown_certificate_is_refused(server_context: ssl.SSLContext) -> None:
    transport = TCPTransport()
    listener = await transport.listen(
        address("l5s://127.0.0.1:0"), ListenOptions(ssl_context=server_context)
    )

    async def serve() -> None:
        link = await listener.accept()
        with pytest.raises(RemoteProtocolError, match="the TLS handshake failed"):
            await link.receive(1)
        link.abort()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        with pytest.raises(ssl.SSLCertVerificationError):
            await transport.connect(address(listener.url), Options())
    listener.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01"])
async def test_a_peer_that_does_not_speak_tls(
    server_context: ssl.SSLContext, garbage: bytes
) -> None:
    transport = TCPTransport()
    listener = await transport.listen(
        address("l5s://127.0.0.1:0"), ListenOptions(ssl_context=server_context)
    )
    plain = attrs.evolve(address(listener.url), scheme="l5", tls=False)
    client = await transport.connect(plain, Options())
    link = await listener.accept()
    await client.send(garbage)
    if garbage.startswith(b"\x16"):
        client.abort()
    with pytest.raises(RemoteProtocolError, match="the TLS handshake failed"):
        await link.receive(1)
    for one in (client, link):
        one.abort()
    listener.close()


async def test_a_slow_handshake_does_not_hold_up_accept(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    transport = TCPTransport()
    listener = await transport.listen(
        address("l5s://127.0.0.1:0"), ListenOptions(ssl_context=server_context)
    )
    plain = attrs.evolve(address(listener.url), scheme="l5", tls=False)
    silent = await transport.connect(plain, Options())
    links = [silent, await listener.accept()]
    with anyio.move_on_after(0.05) as scope:
        await links[1].receive(1)
    assert scope.cancelled_caught

    async def serve() -> None:
        link = await listener.accept()
        links.append(link)
        assert await link.receive(2) == (b"hi", [])

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        client = await transport.connect(address(listener.url), Options(ssl_context=client_context))
        await client.send(b"hi")
    for link in (*links, client):
        link.abort()
    listener.close()


def test_records_that_do_not_decrypt(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
    client = TLSSocket(near, client_context, server_name="localhost")
    server = TLSSocket(far, server_context, server_name=None)
    done = [False, False]
    while not all(done):
        done = [client.handshake(), server.handshake()]
    near.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(RemoteProtocolError, match="bad TLS records"):
        server.recv(10)
    near.close()
    far.close()
