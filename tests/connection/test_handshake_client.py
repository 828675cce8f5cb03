"""What a server may say to a client: `ConnectError` with the reason, or a connection."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest

import l5
from l5._hello import Hello, ServerHello, Upgrade, Upgraded, encode, reject
from tests.connection._raw import envelope, raw_server, read_hello
from tests.pure._hellos import LIMITS, NUMBERS, RENDEZVOUS

pytestmark = pytest.mark.anyio

PLAIN = ServerHello(version=1, limits=LIMITS, pid=1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (bytes(100), "l5"),
        (envelope(b"\xc1", name="ServerHello"), "malformed"),
        (envelope(b"", name="ServerHello", size=1 << 24), "bytes"),
        (encode(Upgraded(ok=True)), "Upgraded"),
        (encode(msgspec.structs.replace(PLAIN, version=7)), "7"),
        (encode(reject("busy", "come back later")), "come back later"),
        (encode(msgspec.structs.replace(PLAIN, choice="rdma")), "not offered"),
        (
            encode(msgspec.structs.replace(PLAIN, choice="shm", rendezvous=RENDEZVOUS)),
            "ticket",
        ),
        (b"", "closed"),
        (encode(PLAIN)[:20], "closed"),
    ],
)
async def test_bad_answers(answer: bytes, reason: str) -> None:
    async def say(stream: anyio.abc.SocketStream, _: Hello) -> None:
        if answer:
            await stream.send(answer)

    async with raw_server(say) as server:
        with pytest.raises(l5.ConnectError, match=f"(?i){reason}") as caught:
            await l5.connect(server.url)
        assert isinstance(caught.value.__cause__, l5.RemoteProtocolError)
        assert len(caught.value.attempts) == 1


async def test_a_server_that_never_answers() -> None:
    # The kernel accepts; nobody ever reads.  No accept of a loop's that a cancellation could meet.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"l5://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(l5.ConnectError, match="did not finish its hello"):
            await l5.connect(url, hello_timeout=0.05)
        with pytest.raises(l5.ConnectError, match="no connection within"):
            await l5.connect(url, connect_timeout=0.05)


@pytest.mark.parametrize("name", ["/run/docker.sock", "@/tmp/x", "@l5-", "@l5-" + "0" * 31 + "/"])
async def test_a_server_cannot_point_the_client_anywhere(name: str) -> None:
    values = msgspec.to_builtins(PLAIN, builtin_types=(bytes,))
    values |= {"choice": "shm", "rendezvous": name, "ticket": b"k" * 32}
    payload = envelope(msgspec.msgpack.encode(values), name="ServerHello")

    async def say(stream: anyio.abc.SocketStream, _: Hello) -> None:
        await stream.send(payload)
        while True:
            await stream.receive()

    assert NUMBERS["ServerHello"]
    async with raw_server(say) as server:
        with pytest.raises(l5.ConnectError, match="rendezvous"):
            await l5.connect(server.url)


async def test_a_rendezvous_where_nobody_listens() -> None:
    """The connection stays on TCP, and says why."""
    heard: list[Hello] = []

    async def say(stream: anyio.abc.SocketStream, _: Hello) -> None:
        hello = msgspec.structs.replace(
            PLAIN, choice="shm", rendezvous=RENDEZVOUS, ticket=b"k" * 32
        )
        await stream.send(encode(hello))
        heard.append(await read_hello(stream))
        await stream.send(encode(Upgraded(ok=False, reason="as you wish")))
        while True:
            await stream.receive()

    async with raw_server(say) as server:
        async with await l5.connect(server.url) as client:
            assert client.transport == "tcp"
            assert "rendezvous" in client.upgrade_report.reasons["shm"]
    assert isinstance(heard[0], Upgrade)
    assert heard[0].transport != "shm"


async def test_a_rendezvous_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens there is not believed because a server named the place."""
    from l5.transports import unix

    original = unix.peer_credentials
    calls: list[object] = []

    def credentials(sock: Any) -> tuple[int | None, int | None]:
        calls.append(sock)
        return (12345, None) if len(calls) == 1 else original(sock)

    async def echo(request: bytes) -> bytes:
        return request

    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        monkeypatch.setattr(unix, "peer_credentials", credentials)
        async with await l5.connect(server.urls[0]) as client:
            assert client.transport == "tcp"
            assert "12345" in client.upgrade_report.reasons["shm"]
            assert await client.request(b"x") == b"x"


# ---- upgrades that cannot be had -----------------------------------------------------------------


@pytest.fixture(params=["unix", "tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"unix": f"l5+unix://{tmp_path}/s", "tcp": "l5://127.0.0.1:0"}[request.param]


def _no_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l5.transports.shm.memory_headroom", lambda: 1 << 20)


def _no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l5.transports.shm.memfd_available", lambda: (False, "no memfd here"))


def _no_join(monkeypatch: pytest.MonkeyPatch) -> None:
    from l5.transports.shm import SharedMemoryTransport

    def join(self: Any, link: Any, params: Any, fds: Any, options: Any) -> Any:
        for fd in fds:
            os.close(fd)
        raise l5.TransportUnavailable("shm", "not in this house")

    monkeypatch.setattr(SharedMemoryTransport, "join", join)


def _other_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    from l5.transports.shm import SharedMemoryTransport

    monkeypatch.setattr(
        SharedMemoryTransport, "judge", lambda *_: "pages of 65536 bytes there, of 4096 here"
    )


def _another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l5._host.same_host", lambda _: False)


OBSTACLES = {
    "1048576 bytes left": _no_headroom,
    "no memfd here": _no_memfd,
    "not in this house": _no_join,
    "pages of 65536": _other_pages,
}


async def test_only_a_unix_socket_proves_the_host(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the proof counts; a file that both ends see makes it needless."""
    _another_host(monkeypatch)
    async with l5.serve(bytes.upper, url) as server:
        async with await l5.connect(server.urls[0]) as client:
            report = client.upgrade_report
            assert await client.request(b"x") == b"X"
    if report.bootstrap == "unix":
        assert report.transport == "shm"
    else:
        assert report.transport == report.bootstrap
        assert "different hosts" in report.reasons["shm"]


@pytest.mark.parametrize("reason", list(OBSTACLES))
async def test_the_connection_stays_on_the_socket(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[l5.UpgradeReport] = []

    async def on_connection(connection: l5.Connection) -> None:
        reports.append(connection.upgrade_report)
        async for message in connection:
            await connection.send(message)

    async with l5.serve(on_connection, url, per="connection") as server:
        OBSTACLES[reason](monkeypatch)
        async with await l5.connect(server.urls[0]) as client:
            assert client.transport == client.upgrade_report.bootstrap
            assert reason in client.upgrade_report.reasons["shm"]
            assert reason in str(client.upgrade_report)
            await client.send(b"over the socket")
            assert await client.receive() == b"over the socket"
        assert reports[0].transport == client.transport
        if reason != "no memfd here":  # then there was no offer that the server could know of
            assert reason in reports[0].reasons["shm"]


@pytest.mark.parametrize("reason", list(OBSTACLES))
async def test_a_demanded_upgrade_fails_with_the_reason(
    tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(request: bytes) -> bytes:
        return request

    async with l5.serve(echo, f"l5+unix://{tmp_path}/s") as server:
        OBSTACLES[reason](monkeypatch)
        with pytest.raises(l5.ConnectError, match=reason):
            await l5.connect(f"l5+shm://{tmp_path}/s")
        monkeypatch.undo()
        async with await l5.connect(f"l5+shm://{tmp_path}/s") as client:
            assert await client.request(b"x") == b"x"
        while server.statistics().connections:
            await anyio.sleep(0.001)


async def test_transports_can_be_ruled_out(url: str) -> None:
    async def echo(request: bytes) -> bytes:
        return request

    bootstrap = url.partition("://")[0].partition("+")[2] or "tcp"
    async with l5.serve(echo, url, transports=bootstrap) as server:
        async with await l5.connect(server.urls[0]) as client:
            assert client.transport == bootstrap
            assert f"only {bootstrap}" in client.upgrade_report.reasons["shm"]
    async with l5.serve(echo, url) as server:
        async with await l5.connect(server.urls[0], transports=bootstrap) as client:
            assert client.transport == bootstrap
            assert "shm" in client.upgrade_report.reasons
