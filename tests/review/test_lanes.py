"""The short way of plain sockets (`native/_lane.h`) when peers, or handlers, do their worst."""

from __future__ import annotations

import gc
import os
import socket
import struct
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

import l5
from l5 import native
from l5._frames import HEADER_BYTES, Flag, Kind
from l5._hello import encode
from l5._requests import Request
from tests.connection._raw import Peer, ask, client_hello, frame, raw, read_hello
from tests.connection.test_lanes import answered_by, asked, echo

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]
DEADLINE = struct.pack("<I", 60_000_000)


def late(id: int, payload: bytes = b"") -> bytes:
    """A request with a deadline, which the short way leaves to the generic one."""
    return frame(Kind.REQUEST, id, DEADLINE + payload, Flag.DEADLINE)


def put(peer: Peer, data: bytes) -> None:
    """Send at once, and let no task run."""
    assert os.write(descriptor(peer), data) == len(data)


def descriptor(peer: Peer) -> int:
    return peer.stream.extra(anyio.abc.SocketAttribute.raw_socket).fileno()


def reset(peer: Peer) -> None:
    """Close with RST, at once."""
    sock = peer.stream.extra(anyio.abc.SocketAttribute.raw_socket)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one, other = socket.socketpair()
    with one, other:
        os.dup2(one.fileno(), sock.fileno(), inheritable=False)


async def test_an_answer_that_another_task_took_is_not_taken_twice() -> None:
    """The driver sleeps while somebody else looks: what comes next with this id is a fault."""
    peers: list[Peer] = []
    over = anyio.Event()

    async def script(peer: Peer) -> None:
        peers.append(peer)
        await over.wait()

    async with answered_by(script) as (connection, lane):
        got: list[bytes] = []

        async def one() -> None:
            got.append(await connection.request(b"x"))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            reply = frame(Kind.RESPONSE, 1, b"first")
            put(peers[0], reply)
            connection._session.hub.poll_events()  # as a task does that breathes
            assert lane.in_flight == 0
            put(peers[0], reply)
        assert got == [b"first"]
        assert lane.in_flight == 0
        with pytest.raises(l5.RemoteProtocolError, match="no answer open"), anyio.fail_after(60):
            await connection.request(b"x")
        over.set()


async def test_no_request_is_longer_than_a_message(tmp_path: Path) -> None:
    """A frame may be: by a deadline, which is no part of the message."""
    async with asked(echo, "tcp", tmp_path, max_message="1KiB") as (peer, session, _):
        await peer.stream.send(ask(1, bytes(1024)) + late(2, bytes(1024)))
        assert await peer.answers(2) == [(1, bytes(1024)), (2, bytes(1024))]
        assert session.lane.answered == 1
        await peer.stream.send(ask(3, bytes(1025)))
        kind, id, payload = await peer.frame()
        assert (kind, id) == (Kind.ERROR, 0)  # no request's, but the last word
        assert b"sent a message of 1025 bytes" in payload


async def test_a_reset_in_the_middle_of_a_request_is_no_breach(tmp_path: Path) -> None:
    """A socket tells its error only once, also to who looks whether the rest has come."""
    peers: list[Peer] = []
    seen: list[Any] = []

    async def handle(_: bytes) -> bytes:
        reset(peers[0])
        await anyio.sleep_forever()
        return b""

    async with asked(handle, "tcp", tmp_path) as (peer, session, server):
        peers.append(peer)
        session.on_close.append(lambda: seen.append(session.error))
        put(peer, ask(1) + ask(2)[:5])
        with anyio.fail_after(60):
            while server._sessions:
                await anyio.sleep(0.01)
    assert isinstance(seen[0], anyio.BrokenResourceError), seen


async def test_half_a_frame_is_followed_by_nothing(tmp_path: Path) -> None:
    """What cannot be kept of a frame ends the connection: the stream would be out of step."""

    def refuse(_: bytes) -> None:
        raise MemoryError

    heard: list[bytes] = []

    def handle(request: bytes) -> bytes:
        heard.append(request)
        return b""

    async with l5.serve(handle, f"l5+unix://{tmp_path}/s") as server:
        async with await l5.connect(server.urls[0], transports="unix") as connection:
            session: Any = connection._session
            session.channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            session.keep_rest = refuse
            payload = bytes(15_000)
            with pytest.raises(MemoryError):
                for _ in range(100):  # the server does not run meanwhile
                    session.lane.request(payload)
            with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(60):
                await connection.request(b"x")
    assert set(heard) <= {payload}


@pytest.mark.parametrize("plain", ["unix", "shm"])
async def test_the_generic_way_starves_nobody(plain: str, tmp_path: Path) -> None:
    """Who always has requests waiting that Python must take does not keep the others' waiting."""
    answered, enough = 0, 10_000
    url = f"l5+unix://{tmp_path}/s"

    async def flood(stream: anyio.abc.SocketStream) -> None:
        nonlocal answered
        await stream.send(b"".join(late(n) for n in range(1, 901)))
        rest = 0
        while answered < enough:
            count, rest = divmod(rest + len(await stream.receive()), HEADER_BYTES)
            ids = range(901 + answered, 901 + answered + count)
            answered += count
            await stream.send(b"".join(map(late, ids)))

    async with l5.serve(echo, url, transports=["shm", "unix"], in_flight_max=1000) as server:
        async with raw(server.urls[0]) as stream, anyio.create_task_group() as group:
            await stream.send(encode(client_hello(offers=[])))
            await read_hello(stream)
            while not server._sessions:
                await anyio.lowlevel.checkpoint()
            (session,) = server._sessions
            lane: Any = session.lane
            lane.aside += 1  # as with a tap, or with TLS, where there is no lane
            group.start_soon(flood, stream)
            while answered < 200:
                await anyio.lowlevel.checkpoint()
            async with await l5.connect(url, transports=plain) as other:
                for _ in range(5):
                    await other.request(b"x")
            assert answered < enough
            group.cancel_scope.cancel()


async def test_a_ring_for_the_generic_way_leaves_lanes_their_turn(tmp_path: Path) -> None:
    """Of a ring that always has something for Python, and a lane, each is given up in turn."""
    url = f"l5+unix://{tmp_path}/s"
    async with l5.serve(echo, url, transports=["shm", "unix"]) as server:
        async with (
            await l5.connect(url, transports="shm") as ring,
            await l5.connect(url, transports="unix") as plain,
        ):
            while len(server._sessions) < 2:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            hub = ring._session.hub
            poller: Any = hub.poller
            poller.breathe()
            lane: Any = plain._session.lane
            assert lane.request(b"q") is not None
            hub.poll_events()
            assert poller.hot == 1
            assert ring._session.channel.try_send(Kind.REQUEST, Flag.DEADLINE, 7, DEADLINE)
            first = poller.serve(server._workers, None)
            assert type(first) is native.Ring
            second = poller.serve(server._workers, None)
            assert second[0] == "request"
            assert second[3] == b"q"
            assert type(poller.serve(server._workers, None)) is native.Ring


async def test_requests_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    async with l5.serve(echo, f"l5+unix://{tmp_path}/s") as server:
        async with await l5.connect(server.urls[0], transports="unix") as connection:
            await connection.request(b"x")
            gc.collect()
            gc.disable()
            try:
                for _ in range(100):
                    await connection.request(b"x")
                left = [one for one in gc.get_objects() if type(one) is Request]
            finally:
                gc.enable()
    assert not left


async def test_a_handler_that_closes_what_the_collector_then_finds(tmp_path: Path) -> None:
    servers: list[l5.Server] = []

    def handle(request: bytes) -> bytes:
        if request == b"close":
            for session in list(servers[0]._sessions):
                session.close()
        gc.collect()
        return request

    async with asked(handle, "unix", tmp_path) as (peer, _, server):
        servers.append(server)
        await peer.stream.send(ask(1) + ask(2, b"close") + ask(3) + ask(4)[:5])
        assert (await peer.frame())[1] == 1
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            for _ in range(3):
                await peer.frame()
        async with await l5.connect(server.urls[0], transports="unix") as other:
            assert await other.request(b"x") == b"x"  # perhaps on the same descriptor


async def test_a_handler_that_forks_leaves_the_stream_to_its_parent(tmp_path: Path) -> None:
    def handle(request: bytes) -> bytes:
        if request == b"fork":
            child = os.fork()
            if child == 0:
                os._exit(7 if servers[0]._sessions and sessions[0].lane.session is None else 8)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        return request

    sessions: list[Any] = []
    servers: list[Any] = []
    async with asked(handle, "unix", tmp_path) as (peer, session, server):
        sessions.append(session)
        servers.append(server)
        await peer.stream.send(ask(1, b"fork") + ask(2) + ask(3))
        assert [id for id, _ in await peer.answers(3)] == [1, 2, 3]
