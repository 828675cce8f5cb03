"""What strangers say to a server ends their connection alone, with a reason; others are served."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from l5 import _host, _tickets
from l5._hello import Attach, Reject, ServerHello, encode
from l5._options import MIB
from tests.connection._raw import client_hello, envelope, raw, read_hello
from tests.pure._hellos import SERVER

pytestmark = pytest.mark.anyio

NONSENSE = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "malformed"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), "malformed"),
    "zeros": (bytes(100), "malformed"),
    "not msgpack": (envelope(b"\xc1" * 20), "malformed"),
    "not a map": (envelope(b"\x01"), "malformed"),
    "empty": (envelope(b""), "malformed"),
    "too long": (envelope(b"", size=1 << 20), "malformed"),
    "endless": (envelope(b"", size=0xFFFFFFFF), "malformed"),
    "another message": (encode(SERVER), "malformed"),
    "a later version": (encode(client_hello(versions=[99, 100])), "version"),
}


async def echo(request: bytes) -> bytes:
    return request


@pytest.fixture(params=["unix", "tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"unix": f"l5+unix://{tmp_path}/s", "tcp": "l5://127.0.0.1:0"}[request.param]


@asynccontextmanager
async def serving(url: str, *others: str, **options: Any) -> AsyncIterator[l5.Server]:
    """A server; afterwards a connection that was there all the time, and a new one, work."""
    async with l5.serve(echo, url, *others, **options) as server:
        token = options.get("token")
        async with await l5.connect(server.urls[0], token=token) as client:
            yield server
            assert await client.request(b"old") == b"old"
            async with await l5.connect(server.urls[0], token=token) as other:
                assert await other.request(b"new") == b"new"


def hurried(url: str, *hello_timeouts: float) -> list[str]:
    """Other URLs of the server, for the stranger alone: who is in no way slow has time."""
    return [
        f"{url.replace('/s', f'/t{number}')}?hello_timeout={seconds}"
        for number, seconds in enumerate(hello_timeouts)
    ]


@pytest.mark.parametrize("what", list(NONSENSE))
async def test_nonsense(url: str, what: str) -> None:
    data, code = NONSENSE[what]
    async with serving(url) as server:
        async with raw(server.urls[0]) as stream:
            await stream.send(data)
            answer = await read_hello(stream)
            assert isinstance(answer, Reject)
            assert answer.code == code, answer
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        assert server.statistics().rejected == 1


@pytest.mark.parametrize("sent_bytes", [0, 1, 7, 8, 9, 30])
async def test_too_slow(url: str, sent_bytes: int) -> None:
    """Half a hello, and then silence."""
    async with serving(url, *hurried(url, 0.05)) as server, raw(server.urls[1]) as stream:
        if sent_bytes:
            with suppress(anyio.BrokenResourceError):  # this test may be the one that is late
                await stream.send(encode(client_hello())[:sent_bytes])
        answer = await read_hello(stream)
        assert isinstance(answer, Reject)
        assert answer.code == "timeout"


@pytest.mark.parametrize("sent_bytes", [0, 1, 8, 30])
async def test_gone_in_the_middle(url: str, sent_bytes: int) -> None:
    async with serving(url) as server:
        for _ in range(3):
            async with raw(server.urls[0]) as stream:
                if sent_bytes:
                    await stream.send(encode(client_hello())[:sent_bytes])
        while server.statistics().connections > 1:
            await anyio.sleep(0.001)


async def test_byte_by_byte(url: str) -> None:
    async with serving(url) as server, raw(server.urls[0]) as stream:
        for byte in encode(client_hello(offers=[])):
            await stream.send(bytes([byte]))
        assert isinstance(await read_hello(stream), ServerHello)


async def test_a_hundred_who_never_speak(url: str) -> None:
    async with (
        serving(url, hello_timeout=3.0, hellos_max=50) as server,
        anyio.create_task_group() as group,
    ):
        connected, patient = 0, {"hello_timeout": 60.0, "connect_timeout": 60.0}

        async def keep_silent() -> None:
            nonlocal connected
            async with raw(server.urls[0]) as stream:
                connected += 1
                try:
                    while True:
                        await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    pass

        for _ in range(100):
            group.start_soon(keep_silent)
        while connected < 50:
            await anyio.sleep(0.001)
        async with await l5.connect(server.urls[0], **patient) as client:
            assert await client.request(b"in spite of them") == b"in spite of them"
        group.cancel_scope.cancel()


async def test_a_client_that_never_finishes_its_upgrade(url: str) -> None:
    """It is told of a choice (that it has not earned by a host proof, unless it is on Unix)."""
    from l5 import _host

    hello = client_hello(
        host=_host.prove(),
        offers=[{"transport": "shm", "params": {"ring_bytes": MIB, "page_bytes": 4096}}],
    )
    import msgspec

    hello = msgspec.convert(msgspec.to_builtins(hello), type(hello))
    async with serving(url, *hurried(url, 0.1, 1.0, 30.0)) as server:
        for patient in server.urls[1:]:  # on a busy machine the hello itself may come too late
            async with raw(patient) as stream:
                await stream.send(encode(hello))
                answer = await read_hello(stream)
                if isinstance(answer, Reject) and answer.code == "timeout":
                    continue
                assert isinstance(answer, ServerHello)
                assert answer.choice == "shm", answer.declined
                refusal = await read_hello(stream)
                assert isinstance(refusal, Reject)
                assert refusal.code == "timeout"
                break
        else:
            raise AssertionError("no hello was in time")


# ---- who may connect ---------------------------------------------------------------------------


async def test_tokens_over_tcp() -> None:
    async with serving("l5://127.0.0.1:0", token="right") as server:
        for token in (None, "wrong"):
            with pytest.raises(l5.ConnectError, match="token"):
                await l5.connect(server.urls[0], token=token)
        assert server.statistics().rejected == 2


async def test_other_users_of_a_unix_socket(tmp_path: Path) -> None:
    async with l5.serve(echo, f"l5+unix://{tmp_path}/s", allow_uids={12345}, token="t") as server:
        for token in (None, "wrong"):
            with pytest.raises(l5.ConnectError):
                await l5.connect(server.urls[0], token=token)
        async with await l5.connect(server.urls[0], token="t") as client:
            assert await client.request(b"x") == b"x"


async def test_a_uid_of_another_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overflow uid is nobody's, whoever is allowed; but where all are mapped it is `nobody`."""
    monkeypatch.setattr("l5.transports.unix.peer_credentials", lambda sock: (65534, None))
    uid_map = tmp_path / "uid_map"
    monkeypatch.setattr(_host, "UID_MAP", uid_map)
    url = f"l5+unix://{tmp_path}/s"
    uid_map.write_text("         0     100000      65536\n")
    async with l5.serve(echo, url, allow_uids={65534}, token="t") as server:
        with pytest.raises(l5.ConnectError, match=r"65534 .* only a token"):
            await l5.connect(server.urls[0])
        async with await l5.connect(server.urls[0], token="t") as client:
            assert await client.request(b"x") == b"x"
        uid_map.write_text("         0          0 4294967295\n")
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"x") == b"x"
        async with await l5.connect(server.urls[0], token="t") as client:
            assert await client.request(b"x") == b"x"


async def test_allow_has_the_last_word(url: str) -> None:
    seen: list[Any] = []

    def allow(peer: Any) -> bool:
        seen.append(peer)
        return len(seen) > 1

    async with l5.serve(echo, url, allow=allow) as server:
        with pytest.raises(l5.ConnectError, match="does not take"):
            await l5.connect(server.urls[0])
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"x") == b"x"
        assert all(peer.loopback or peer.uid is not None for peer in seen)


# ---- tickets -----------------------------------------------------------------------------------


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> list[_tickets.TicketHolder]:
    """Tickets as they are issued."""
    holders: list[_tickets.TicketHolder] = []
    original = _tickets.Tickets.issue

    def issue(self: _tickets.Tickets) -> _tickets.TicketHolder:
        holders.append(original(self))
        return holders[-1]

    monkeypatch.setattr(_tickets.Tickets, "issue", issue)
    return holders


async def test_a_ticket_is_good_once(issued: list[_tickets.TicketHolder]) -> None:
    async with serving("l5://127.0.0.1:0") as server:
        rendezvous = server._acceptor.tickets.address
        assert rendezvous is not None
        assert len(issued) == 1
        for ticket in (issued[0].ticket, b"k" * 32):
            async with raw(f"l5+unix://{rendezvous}") as stream:
                await stream.send(encode(Attach(ticket=ticket)))
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()


async def test_nonsense_at_the_rendezvous() -> None:
    async with serving("l5://127.0.0.1:0") as server:
        rendezvous = server._acceptor.tickets.address
        for data in (b"", bytes(100), envelope(b"", size=1 << 30), encode(client_hello())):
            async with raw(f"l5+unix://{rendezvous}") as stream:
                if data:
                    await stream.send(data)
                await stream.send_eof()
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()


async def test_too_many_descriptors(tmp_path: Path) -> None:
    async with serving(f"l5+unix://{tmp_path}/s") as server:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(f"{tmp_path}/s")
        with stranger:
            socket.send_fds(stranger, [encode(client_hello())], [stranger.fileno()] * 50)
            stranger.setblocking(False)
            with pytest.raises(OSError):  # told so, or reset: never served
                while True:
                    await anyio.wait_readable(stranger)
                    data = stranger.recv(4096)
                    assert b"ServerHello" not in data
                    if not data:
                        raise ConnectionResetError
        while server.statistics().rejected < 1:
            await anyio.sleep(0.001)
