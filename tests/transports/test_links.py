"""Links and listeners of every socket transport: bytes, descriptors, peers, cancellation."""

import array
import errno
import fcntl
import logging
import os
import resource
import socket
from pathlib import Path

import anyio
import pytest

from l5._errors import RemoteProtocolError
from l5._options import ListenOptions, Options
from l5.abc import PeerInfo
from l5.transports._sockets import FDS_MAX, SocketLink, SocketListener
from l5.transports.tcp import TCPTransport
from tests.transports._support import KINDS, address, linked

pytestmark = pytest.mark.anyio
every_kind = pytest.mark.parametrize("kind", KINDS)
unix_kinds = pytest.mark.parametrize("kind", ["unix", "abstract"])


@every_kind
async def test_bytes_travel_both_ways(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, server):
        await client.send(b"hello")
        assert await server.receive(100) == (b"hello", [])
        await server.send(b"and back")
        assert await client.receive(3) == (b"and", [])
        assert await client.receive(100) == (b" back", [])


@every_kind
async def test_more_than_the_socket_holds(kind: str, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    async with linked(kind, tmp_path) as (client, server):
        received = bytearray()
        async with anyio.create_task_group() as group:
            group.start_soon(client.send, data)
            while len(received) < len(data):
                received += (await server.receive(65536))[0]
        assert received == data


@every_kind
async def test_end_of_stream(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, server):
        await client.send(b"last")
        client.abort()
        client.abort()
        assert await server.receive(4) == (b"last", [])
        with pytest.raises(anyio.EndOfStream):
            await server.receive(4)
        with pytest.raises(anyio.BrokenResourceError):
            for _ in range(100):
                await server.send(b"to nobody")
        with pytest.raises(anyio.ClosedResourceError):
            await client.send(b"closed")
        with pytest.raises(anyio.ClosedResourceError):
            await client.receive(1)


@every_kind
async def test_abort_wakes_who_waits(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, _server), anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await client.receive(1)

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        client.abort()


@every_kind
async def test_cancelled_waits(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, _server):
        for action in (lambda: client.receive(1), lambda: client.send(bytes(10_000_000))):
            with anyio.move_on_after(0.02) as scope:
                await action()
            assert scope.cancelled_caught


@every_kind
async def test_peers(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, server):
        for link in (client, server):
            assert link.peer.loopback
            assert not link.peer.tls
            assert link.transport == ("unix" if kind == "abstract" else kind)
            if kind != "tcp":
                assert (link.peer.uid, link.peer.pid) == (os.geteuid(), os.getpid())
        assert client.passes_fds == (kind in ("unix", "abstract"))


@unix_kinds
async def test_descriptors(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, server):
        reader, writer = os.pipe()
        await client.send(b"one", [writer])
        os.close(writer)
        data, fds = await server.receive(100)
        assert data == b"one"
        assert len(fds) == 1
        assert fcntl.fcntl(fds[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.write(fds[0], b"through the copy")
        assert os.read(reader, 100) == b"through the copy"
        os.close(fds[0])

        await client.send(b"many", [reader] * FDS_MAX)
        data, fds = await server.receive(100)
        assert len(fds) == FDS_MAX
        for fd in (*fds, reader):
            os.close(fd)


@unix_kinds
async def test_descriptors_come_with_a_long_message_once(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, server):
        length, count = 0, 0
        async with anyio.create_task_group() as group:
            group.start_soon(client.send, bytes(1_000_000), [0])
            while length < 1_000_000:
                data, fds = await server.receive(65536)
                length += len(data)
                count += len(fds)
                for fd in fds:
                    os.close(fd)
        assert count == 1


async def test_too_many_descriptors_are_all_closed(tmp_path: Path) -> None:
    async with linked("unix", tmp_path) as (client, server):
        raw = socket.socket(fileno=client.detach())
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * (FDS_MAX + 1)))
        raw.sendmsg([b"x"], [rights])
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RemoteProtocolError, match="more than 8 descriptors"):
            await server.receive(10)
        while len(os.listdir("/proc/self/fd")) != before:  # closed beside the loop
            await anyio.sleep(0.001)
        raw.close()


@every_kind
async def test_misuse_of_descriptors(kind: str, tmp_path: Path) -> None:
    async with linked(kind, tmp_path) as (client, _server):
        if client.passes_fds:
            with pytest.raises(ValueError, match="at least one byte"):
                await client.send(b"", [0])
            with pytest.raises(ValueError, match="1 to 8 descriptors"):
                await client.send(b"x", [0] * (FDS_MAX + 1))
        else:
            with pytest.raises(ValueError, match="cannot pass descriptors"):
                await client.send(b"x", [0])
        fd = client.detach()
        assert os.fstat(fd)
        os.close(fd)


@every_kind
async def test_listener_waits_accepts_and_closes(kind: str, tmp_path: Path) -> None:
    transport, url = KINDS[kind](tmp_path)
    listener = await transport.listen(address(url), ListenOptions())
    outcome: list[str] = []

    async def serve() -> None:
        try:
            while True:
                link = await listener.accept()
                outcome.append("link")
                link.abort()
        except anyio.ClosedResourceError:
            outcome.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            link = await transport.connect(address(listener.url), Options())
            with pytest.raises(anyio.EndOfStream):
                await link.receive(1)
            link.abort()
        listener.close()
        listener.close()
    assert outcome == ["link"] * 3 + ["closed"]
    with pytest.raises(anyio.ClosedResourceError):
        await listener.accept()
    with pytest.raises(OSError, match=r"127\.0\.0\.1:|nobody listens|no such socket|no listener"):
        await transport.connect(address(listener.url), Options())


@every_kind
async def test_accept_can_be_cancelled(kind: str, tmp_path: Path) -> None:
    transport, url = KINDS[kind](tmp_path)
    listener = await transport.listen(address(url), ListenOptions())
    with anyio.move_on_after(0.02) as scope:
        await listener.accept()
    assert scope.cancelled_caught
    link = await transport.connect(address(listener.url), Options())
    (await listener.accept()).abort()
    link.abort()
    listener.close()


@every_kind
async def test_a_name_in_use_is_refused(kind: str, tmp_path: Path) -> None:
    transport, url = KINDS[kind](tmp_path)
    listener = await transport.listen(address(url), ListenOptions())
    with pytest.raises(OSError) as caught:
        await transport.listen(address(listener.url), ListenOptions())
    assert caught.value.errno == errno.EADDRINUSE
    listener.close()
    again = await transport.listen(address(listener.url), ListenOptions())
    again.close()


@pytest.mark.parametrize("kind", ["unix", "abstract", "inproc"])
async def test_connect_waits_while_the_queue_is_full(kind: str, tmp_path: Path) -> None:
    transport, url = KINDS[kind](tmp_path)
    listener = await transport.listen(address(url), ListenOptions(backlog=1))
    links = []

    async def connect() -> None:
        links.append(await transport.connect(address(listener.url), Options()))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(connect)
        await anyio.sleep(0.03)
        assert len(links) < 6
        for _ in range(6):
            links.append(await listener.accept())
    assert len(links) == 12
    for link in links:
        link.abort()
    listener.close()


async def test_accept_survives_a_lack_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    transport = TCPTransport()
    listener = await transport.listen(address("l5://127.0.0.1:0"), ListenOptions())
    link = await transport.connect(address(listener.url), Options())
    with anyio.move_on_after(0.01):  # the loop registers what it needs
        await anyio.sleep(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    links = []

    async def accept() -> None:
        links.append(await listener.accept())

    with caplog.at_level(logging.WARNING, "l5.transports"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(accept)
                while not caplog.records:
                    await anyio.sleep(0.01)
                await anyio.sleep(0.25)  # it tries again, and says no more
                assert not links
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [record.message for record in caplog.records] == [
        f"{listener.url} cannot accept connections: this process's limit RLIMIT_NOFILE (3) is used"
        " up; it tries on"
    ]
    links[0].abort()
    link.abort()
    listener.close()


async def test_a_connection_that_is_gone_does_not_end_accept() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    seen: list[socket.socket] = []

    def make_link(sock: socket.socket) -> SocketLink:
        seen.append(sock)
        if len(seen) == 1:
            raise OSError(errno.ENOTCONN, "gone")
        return SocketLink(sock, "tcp", PeerInfo(""))

    listener = SocketListener([server], "l5://test", make_link)
    clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
    link = await listener.accept()
    assert len(seen) == 2
    assert seen[0].fileno() == -1
    link.abort()
    listener.close()
    for client in clients:
        client.close()
