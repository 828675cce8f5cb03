"""The memory link: whose it is, what it takes, and that it cannot be abused."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

import l5
from l5 import _memory_wire as wire
from l5._frames import Kind
from l5._memory_link import MemoryLink
from l5._owner_link import OwnerLink
from l5.abc import RemoteRegion
from tests.conformance.test_transports import certificates
from tests.native import _handlers

SIZE = 1 << 20
SEND_BUFFER_BYTES = 1 << 16
pytestmark = pytest.mark.anyio


class Linked(NamedTuple):
    remote: RemoteRegion
    owned: l5.Region
    client: l5.Connection
    server: l5.Server
    link: MemoryLink


@asynccontextmanager
async def linked(
    tmp_path: Path, transports: str = "unix", **options: Any
) -> AsyncGenerator[Linked]:
    url = f"l5+unix://{tmp_path}/s?transports={transports}"
    with l5.Region.create(SIZE, write=True, atomic=True) as owned:
        async with (
            l5.serve(lambda request: request, url, **options) as server,
            await l5.connect(url) as client,
        ):
            server.export("table", owned)
            remote = await client.open_region("table")
            assert client._memory is not None
            yield Linked(remote, owned, client, server, client._memory)


async def until(condition: Any) -> None:
    while not condition():
        await anyio.sleep(0.001)


def until_true(condition: Any) -> None:
    """The same for threads."""
    while not condition():
        time.sleep(0.001)


# ---- whose it is -------------------------------------------------------------------------------


async def test_it_is_nobodys_connection(tmp_path: Path) -> None:
    """Neither handlers, nor counters, nor limits of connections know of it."""
    async with linked(tmp_path, connections_max=1) as (_, _, client, server, _):
        statistics = server.statistics()
        assert (statistics.connections, statistics.connections_total) == (1, 1)
        roles = sorted(view.role for view in l5.snapshot().connections)
        assert roles == ["client", "memory", "memory", "server"]
        with pytest.raises(l5.ConnectError, match="1 connections are open"):
            await l5.connect(server.urls[0])
        assert await client.request(b"sound") == b"sound"


async def test_handlers_of_connections_do_not_see_it(tmp_path: Path) -> None:
    seen: list[l5.Connection] = []

    async def handle(connection: l5.Connection) -> None:
        seen.append(connection)
        await anyio.sleep_forever()

    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE) as owned:
        async with l5.serve(handle, url, per="connection") as server, await l5.connect(url) as one:
            server.export("table", owned)
            remote = await one.open_region("table")
            assert await remote.read(0, 1) == b"\0"
            assert len(seen) == 1


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
@pytest.mark.parametrize("transports", ["shm", "unix"])
async def test_of_a_native_service(tmp_path: Path, transports: str) -> None:
    service = l5.NativeService(_handlers.address(), keep_alive=_handlers.library())
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE) as owned:
        owned.write(0, b"table")
        async with l5.serve(service, url) as server:
            server.export("table", owned)
            async with await l5.connect(url, transports=transports) as client:
                remote = await client.open_region("table")
                assert remote.one_sided == (transports == "shm")
                assert await remote.read(0, 5) == b"table"
                assert await client.request(b"echo") == b"echo"


@pytest.mark.parametrize("transports", ["shm", "unix"])
async def test_memory_that_cannot_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transports: str
) -> None:
    """Where there is no memfd (or no C core at all) a region is there for those who ask."""
    monkeypatch.setattr("l5._region.memfd_available", lambda: (False, "none today"))
    async with linked(tmp_path, transports) as (remote, owned, _, server, _):
        assert owned.fileno() == -1
        assert not remote.one_sided and remote.emulated_because
        await remote.write(0, b"table")
        assert await remote.fetch_and_add(8, 5) == 0
        with owned.view as view:
            assert bytes(view[:9]) == b"table\0\0\0\5"
        server.revoke("table")
        with pytest.raises(l5.RemoteAccessError, match="revoked"):
            await remote.read(0, 1)


async def test_a_region_of_many_servers(tmp_path: Path) -> None:
    """Each can revoke for itself; closing it ends it everywhere, and nothing is kept."""
    urls = [f"l5+unix://{tmp_path}/{number}" for number in range(2)]
    with l5.Region.create(SIZE) as owned:
        async with (
            l5.serve(lambda request: request, urls[0]) as first,
            l5.serve(lambda request: request, urls[1]) as second,
            await l5.connect(urls[0]) as one,
            await l5.connect(urls[1]) as two,
        ):
            first.export("table", owned)
            second.export("other", owned)
            here, there = await one.open_region("table"), await two.open_region("other")
            first.revoke("table")
            with pytest.raises(l5.RemoteAccessError):
                await here.read(0, 1)
            assert await there.read(0, 1) == b"\0"
            assert len(owned.on_close) == 1
            owned.close()
            with pytest.raises(l5.RemoteAccessError):
                await there.read(0, 1)
            with pytest.raises(ValueError, match="closed"):
                first.export("again", owned)


async def test_another_server_at_the_address(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE) as owned:
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", owned)
            client = await l5.connect(url)
            os.rename(tmp_path / "s", tmp_path / "old")
            async with client, l5.serve(lambda request: request, url) as other:
                other.export("table", owned)
                with pytest.raises(l5.RemoteAccessError, match="another server"):
                    await client.open_region("table")
                os.rename(tmp_path / "old", tmp_path / "s")
                remote = await client.open_region("table")
                assert await remote.read(0, 1) == b"\0"


async def test_only_with_a_connection(tmp_path: Path) -> None:
    """The key of a connection that has ended, or never was, opens nothing."""
    async with linked(tmp_path) as (_, _, client, server, _):
        dial = client._dial
        assert dial is not None
        await client.aclose()
        await until(lambda: server.statistics().connections == 0)
        with pytest.raises(l5.ConnectError, match="has ended"):
            await dial()


async def test_the_second_replaces_the_first(tmp_path: Path) -> None:
    async with linked(tmp_path) as (remote, _, client, _, link):
        dial = client._dial
        assert dial is not None
        async with await dial() as second:
            with pytest.raises(l5.RemoteAccessError):
                while True:
                    await remote.read(0, 1)
            assert not link.up
            again = await client.open_region("table")  # which replaces the second
            assert await again.read(0, 1) == b"\0"
            assert client._memory is not link
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                while True:
                    await second.request(wire.pack_close(1))


async def test_tokens_count_for_it(tmp_path: Path) -> None:
    async with linked(tmp_path) as (_, _, client, _, _):
        assert client._dial is not None
    url = "l5+tcp://127.0.0.1:0"
    with l5.Region.create(SIZE) as owned:
        async with l5.serve(lambda request: request, url, token="secret") as server:
            server.export("table", owned)
            async with await l5.connect(server.urls[0], token="secret") as client:
                remote = await client.open_region("table")
                assert await remote.read(0, 1) == b"\0"


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
async def test_from_tls_to_mapped_memory() -> None:
    server_context, client_context = certificates()
    with l5.Region.create(SIZE) as owned:
        owned.write(0, b"table")
        async with l5.serve(
            lambda request: request, "l5s://127.0.0.1:0", ssl_context=server_context
        ) as server:
            server.export("table", owned)
            async with await l5.connect(server.urls[0], ssl_context=client_context) as client:
                remote = await client.open_region("table")
                assert remote.one_sided and await remote.read(0, 5) == b"table"


# ---- what an owner takes -----------------------------------------------------------------------

BAD = {
    "nothing": b"",
    "no handle": b"\3\1",
    "no such operation": wire.HEAD.pack(99, 1),
    "a handle that is not open": wire.pack_read(7, [(0, 8)]),
    "half a span": wire.pack_read(1, [(0, 8)])[:-1],
    "too many spans": wire.pack_read(1, [(0, 0)] * (wire.SPANS_MAX + 1)),
    "beyond the end": wire.pack_read(1, [(SIZE - 7, 8)]),
    "far beyond": wire.pack_read(1, [((1 << 64) - 4, 8)]),
    "too much": wire.pack_read(1, [(0, wire.DATA_BYTES)] * 2),
    "a write beyond": wire.pack_write(1, SIZE - 7, bytes(8)),
    "a write far beyond": wire.pack_write(1, (1 << 64) - 8, bytes(8)),
    "a write nowhere": wire.HEAD.pack(wire.Operation.WRITE, 1) + b"1234567",
    "an unaligned word": wire.pack_add(1, 4, 1),
    "a word beyond": wire.pack_swap(1, SIZE, 0, 1),
    "half a word": wire.pack_add(1, 8, 1)[:-1],
    "a handle in use": wire.pack_open(1, "table"),
    "no UTF-8": wire.HEAD.pack(wire.Operation.OPEN, 9) + b"\xff\xfe",
}


@pytest.mark.parametrize("transports", ["unix", "shm"])
async def test_what_is_refused(tmp_path: Path, transports: str) -> None:
    if transports == "shm" and not l5.native.available:
        pytest.skip(l5.native.reason)
    async with linked(tmp_path, transports) as (remote, owned, client, _, link):
        for name, payload in BAD.items():
            with pytest.raises(l5.RemoteAccessError):
                await link.request(payload)
                pytest.fail(name)
        assert owned.read(0, SIZE) == bytes(SIZE)
        await link.request(wire.pack_close(12345))  # closing what is not there is nothing
        assert await remote.read(0, 8) == bytes(8)
        assert await client.request(b"sound") == b"sound"


async def test_who_does_not_take_the_answers(tmp_path: Path) -> None:
    """Reads without end, and nobody reads what they give: the owner keeps a bounded amount."""
    async with linked(tmp_path) as (_, _, client, server, link):
        channel = link._session.channel
        link._session.hub.detach(link._session)  # from now on nobody receives anything
        (owner,) = server._acceptor.exports._links.values()
        assert owner._session is not None
        for end in (link._session, owner._session):  # whatever net.core.wmem_default is
            with socket.socket(fileno=os.dup(end.channel.fileno())) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        read = wire.pack_read(1, [(0, wire.DATA_BYTES)])
        sent = refused = 0
        while refused < 50:
            try:
                taken = channel.try_send(Kind.REQUEST, 0, 1000 + sent, read)
            except (anyio.BrokenResourceError, OSError):
                break  # it was cut off
            sent += taken
            refused = 0 if taken else refused + 1
            channel.flush()
            assert len(owner._waiting) <= wire.MEMORY_IN_FLIGHT
            await anyio.sleep(0.001)
        # What was answered, what the two sockets hold, what waits: and then it is cut off.
        assert wire.MEMORY_IN_FLIGHT < sent < 1000
        assert owner._session.state != "OPEN"
        assert await client.request(b"sound") == b"sound"


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
async def test_descriptors_for_an_owner(tmp_path: Path) -> None:
    """Nobody asked for them: the link breaks, or the kernel does not let them through."""
    async with linked(tmp_path, "shm") as (_, _, client, _, link):
        with socket.socket(fileno=os.dup(link._session.channel.fileno())) as raw:
            try:
                socket.send_fds(raw, [b"\0"], [0, 0])
            except OSError:
                raw.send(b"\0")
        assert await client.request(b"sound") == b"sound"


# ---- what a client takes -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"", bytes(7), bytes(9)])
async def test_answers_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    async with linked(tmp_path) as (remote, _, client, _, _):
        monkeypatch.setattr(OwnerLink, "_execute", lambda *_: answer)
        operations = [remote.read(0, 8), remote.fetch_and_add(0, 1)]
        if answer:
            operations.append(remote.write(0, b"x"))
        for number, operation in enumerate(operations):
            expected = l5.RemoteAccessError if number else l5.RemoteProtocolError
            with pytest.raises(expected):
                await operation
        assert await client.request(b"sound") == b"sound"


GRANT = {"size_bytes": 4096, "writable": False, "atomic": False, "reply_bytes": 4096}
LIES = {
    "no grant": b"\xc1",
    "no map": b"\x01",
    "no size": {},
    "a size of nothing": GRANT | {"size_bytes": 0},
    "a negative size": GRANT | {"size_bytes": -1},
    "answers without room": GRANT | {"reply_bytes": 0},
    "no batch": GRANT,
    "a batch of words": GRANT | {"params": {"batch": "one"}},
    "a batch of the past": GRANT | {"params": {"batch": 0}},
}


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
@pytest.mark.parametrize("lie", LIES)
async def test_grants_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    import msgspec

    async with linked(tmp_path, "shm") as (_, _, client, _, _):
        said = LIES[lie]
        answer = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
        monkeypatch.setattr(OwnerLink, "_execute", lambda *_: answer)
        with pytest.raises(l5.RemoteProtocolError):
            await client.open_region("table")
        assert await client.request(b"sound") == b"sound"


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
@pytest.mark.parametrize(
    "params",
    [
        {"batch": 5, "control_offset": 0, "control_value": 1},
        {"control_offset": 4096},
        {"control_offset": -8},
        {"control_offset": 3},
        {"control_offset": "0"},
        {"control_value": -1},
        {"control_value": 1 << 64},
    ],
)
async def test_control_words_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    from l5.transports._memory_socket import MemorySocketChannel

    original = MemorySocketChannel.grant
    async with linked(tmp_path, "shm") as (_, _, client, _, _):
        monkeypatch.setattr(
            MemorySocketChannel, "grant", lambda *args: {**original(*args), **params}
        )
        try:
            remote = await client.open_region("table")
        except (l5.RemoteProtocolError, l5.RemoteAccessError):
            pass
        else:
            assert not remote.one_sided  # the descriptors were not there: it asks
        assert await client.request(b"sound") == b"sound"
