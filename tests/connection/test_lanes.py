"""The short way of requests on plain sockets (`native/_lane.h`): used, and never in the way.

Peers are raw sockets, so that each read of ours finds exactly what a test wants it to find.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import pytest

import l5
from l5 import native
from l5._frames import HEADER_BYTES, Flag, Kind, pack_error, pack_header
from l5._hello import Hello, encode
from tests.connection._raw import Peer, ask, client_hello, frame, raw, raw_server, read_hello
from tests.pure._hellos import SERVER

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]
over = pytest.mark.parametrize("kind", ["tcp", "unix"])
CHOICE = msgspec.structs.replace(SERVER, choice=None, params={}, rendezvous=None, ticket=None)
BEAT = struct.pack("<QI", 5, 250_000)


def url(kind: str, folder: Path) -> str:
    return "l5://127.0.0.1:0" if kind == "tcp" else f"l5+unix://{folder}/s"


@asynccontextmanager
async def asked(
    handler: Any, kind: str, folder: Path, **options: Any
) -> AsyncGenerator[tuple[Peer, Any, l5.Server]]:
    """A server with one raw client: the client, the server's session, the server."""
    async with l5.serve(handler, url(kind, folder), transports=kind, **options) as server:
        async with raw(server.urls[0]) as stream:
            await stream.send(encode(client_hello(offers=[])))
            await read_hello(stream)
            while not server._sessions:
                await anyio.lowlevel.checkpoint()
            (session,) = server._sessions
            yield Peer(stream), session, server


@asynccontextmanager
async def answered_by(
    script: Callable[[Peer], Any],
) -> AsyncGenerator[tuple[l5.Connection, Any]]:
    """A client whose server is `script`: the connection and its lane."""

    async def answer(stream: anyio.abc.SocketStream, _: Hello) -> None:
        await stream.send(encode(CHOICE))
        await script(Peer(stream))

    async with raw_server(answer) as server:
        async with await l5.connect(server.url, transports="tcp") as connection:
            yield connection, connection._session.lane


def echo(request: bytes) -> bytes:
    return request


# ---- it is used


@over
async def test_requests_take_the_short_way(kind: str, tmp_path: Path) -> None:
    async with l5.serve(echo, url(kind, tmp_path), transports=kind) as server:
        # Without heartbeats: how many come meanwhile, and wake the client, is the machine's affair.
        told = {"transports": kind, "heartbeat_ms": 0}
        async with await l5.connect(server.urls[0], **told) as connection:
            lane: Any = connection._session.lane
            session: Any = next(iter(server._sessions))
            calls = lane.calls
            for number in range(50):
                assert await connection.request(b"%d" % number) == b"%d" % number
            assert session.lane.answered == 50
            assert lane.frames_sent == 50
            # One call to send and one to take the answer; now and then the loop looks first.
            assert lane.calls - calls <= 2 * 50 + 10
            assert connection.statistics().requests_sent == 50
            assert connection.statistics().in_flight == 0
            counts = server.statistics()
            assert (counts.requests, counts.failed) == (50, 0)
            assert session.window.handling == 0


@over
async def test_no_wake_up_when_nothing_happens(kind: str, tmp_path: Path) -> None:
    async with asked(echo, kind, tmp_path) as (peer, session, _):
        await peer.stream.send(ask(1))
        await peer.answers(1)
        await anyio.wait_all_tasks_blocked()
        before = session.hub.sleeps
        await anyio.sleep(0.2)
        assert session.hub.sleeps == before


# ---- what a server finds in one read


@over
@pytest.mark.parametrize("aside", [0, 1])
async def test_requests_split_at_every_byte(kind: str, aside: int, tmp_path: Path) -> None:
    stream = ask(1, b"first") + ask(2, b"") + ask(3, b"x" * 40)
    async with asked(echo, kind, tmp_path) as (peer, session, _):
        session.lane.aside += aside
        for cut in range(1, len(stream), 3):
            await peer.stream.send(stream[:cut])
            await anyio.wait_all_tasks_blocked()
            await peer.stream.send(stream[cut:])
            assert await peer.answers(3) == [(1, b"first"), (2, b""), (3, b"x" * 40)], cut
        assert (session.lane.answered > 0) is not aside
        assert session.window.handling == 0


@over
async def test_what_is_behind_a_request_is_kept_in_order(kind: str, tmp_path: Path) -> None:
    """Hundreds of requests in one write, half a one at the end, long ones between."""
    sizes = [n * 37 % 600 for n in range(300)]
    sizes[100] = 30_000  # longer than one read
    stream = b"".join(ask(n, bytes([n & 255]) * size) for n, size in enumerate(sizes, 1))
    async with asked(echo, kind, tmp_path, in_flight_max=400) as (peer, session, _):
        got: list[tuple[int, bytes]] = []
        async with anyio.create_task_group() as group:
            group.start_soon(peer.stream.send, stream)
            got = await peer.answers(len(sizes))
        assert [(id, len(payload)) for id, payload in got] == list(enumerate(sizes, 1))
        assert all(payload == bytes([id & 255]) * len(payload) for id, payload in got)
        assert session.lane.answered >= 100  # up to the long one
        assert not session.lane.has_rest


@over
async def test_control_frames_between_requests(kind: str, tmp_path: Path) -> None:
    stream = (
        ask(1)
        + frame(Kind.CANCEL, 77)
        + ask(2)
        + frame(Kind.HEARTBEAT, 0, BEAT)
        + frame(Kind.REQUEST, 3, struct.pack("<I", 5_000_000) + b"late", Flag.DEADLINE)
        + frame(Kind.REQUEST, 4, b"half", Flag.MORE)
        + ask(5)
        + frame(Kind.REQUEST, 4, b"+half")
        + ask(6)
    )
    wanted = [(1, b"q"), (2, b"q"), (3, b"late"), (5, b"q"), (4, b"half+half"), (6, b"q")]
    async with asked(echo, kind, tmp_path) as (peer, session, _):
        for _ in range(3):
            await peer.stream.send(stream)
            assert sorted(await peer.answers(6)) == sorted(wanted)
        assert session.window.handling == 0


@over
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (pack_header(0, 200, 0, 9), b"unknown kind"),
        (pack_header(1, Kind.REQUEST, 0x80, 9), b"flags"),
        (struct.pack("<IBBHQ", 1, Kind.REQUEST, 0, 7, 9) + b"x", b"reserved"),
        (pack_header(1 << 30, Kind.REQUEST, 0, 9), b"bytes where"),
        (frame(Kind.RESPONSE, 9, b"x"), b"no answer open"),
        (frame(Kind.DATA, 9, b"x"), b"plain data"),
    ],
)
async def test_who_breaks_a_rule_is_told_after_his_answers(
    kind: str, bad: bytes, why: bytes, tmp_path: Path
) -> None:
    async with asked(echo, kind, tmp_path) as (peer, _, server):
        await peer.stream.send(ask(1) + ask(2) + bad + ask(3))
        assert await peer.answers(2) == [(1, b"q"), (2, b"q")]
        what, id, payload = await peer.frame()
        assert (what, id) == (Kind.ERROR, 0)
        assert why in payload
        with anyio.fail_after(60):
            while server._sessions:
                await anyio.sleep(0.01)


@over
async def test_more_requests_than_agreed(kind: str, tmp_path: Path) -> None:
    async def never(request: bytes) -> bytes:
        await anyio.sleep_forever()
        return request

    async with asked(never, kind, tmp_path, in_flight_max=3) as (peer, _, _server):
        await peer.stream.send(b"".join(ask(n) for n in range(1, 6)))
        what, id, payload = await peer.frame()
        assert (what, id) == (Kind.ERROR, 0)
        assert b"3 requests in flight" in payload


@over
@pytest.mark.parametrize("half", [0, 5, 20])
async def test_the_end_behind_requests(kind: str, half: int, tmp_path: Path) -> None:
    async with asked(echo, kind, tmp_path) as (peer, session, server):
        await peer.stream.send(ask(1) + ask(2, b"x" * 40)[:half])
        assert await peer.answers(1) == [(1, b"q")]
        await peer.stream.send_eof()
        with anyio.fail_after(60):
            while server._sessions:
                await anyio.sleep(0.01)
        assert session.lane.session is None


async def test_a_reset_ends_the_connection(tmp_path: Path) -> None:
    async with asked(echo, "tcp", tmp_path) as (peer, session, server):
        await peer.stream.send(ask(1))
        await peer.answers(1)
        seen: list[Exception | None] = []
        session.on_close.append(lambda: seen.append(session.error))
        sock = peer.stream.extra(anyio.abc.SocketAttribute.raw_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await peer.stream.aclose()
        with anyio.fail_after(60):
            while server._sessions:
                await anyio.sleep(0.01)
        assert isinstance(seen[0], anyio.BrokenResourceError)


# ---- handlers


@over
async def test_handlers_that_suspend_raise_or_answer_oddly(kind: str, tmp_path: Path) -> None:
    async def handle(request: bytes) -> Any:
        if request == b"wait":
            await anyio.sleep(0.01)
        if request == b"raise":
            raise ValueError("no")
        return {b"view": bytearray(b"v"), b"none": None, b"long": bytes(30_000)}.get(request, b"ok")

    words = [b"wait", b"raise", b"view", b"none", b"long", b"plain"]
    async with asked(handle, kind, tmp_path) as (peer, session, _):
        await peer.stream.send(b"".join(ask(n, word) for n, word in enumerate(words, 1)))
        got: dict[int, tuple[int, bytes]] = {}
        while len(got) < len(words):
            what, id, payload = await peer.frame()
            got[id] = (what, payload)
        assert [got[n][0] for n in range(1, 7)] == [3, 4, 3, 4, 3, 3]
        assert got[1][1] == got[6][1] == b"ok"
        assert got[3][1] == b"v"
        assert len(got[5][1]) == 30_000
        assert b"ValueError" in got[2][1]
        assert session.window.handling == 0


async def test_a_peer_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    kind = "unix"  # over TCP a window that is full opens slowly
    big = bytes(4_000)

    def handle(_: bytes) -> bytes:
        return big

    async with asked(handle, kind, tmp_path, in_flight_max=5000) as (lazy, session, server):
        session.channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        await lazy.stream.send(b"".join(ask(n) for n in range(1, 401)))
        with anyio.fail_after(60):
            while not session.channel.wants_write:  # until it is full
                await anyio.sleep(0.01)
        assert session.lane.unsent
        async with await l5.connect(server.urls[0], transports=kind) as other:
            for _ in range(20):  # others are served
                assert await other.request(b"x") == big
        # What waits here to be sent is one frame at most.
        assert len(session.channel._rest) <= len(big) + HEADER_BYTES
        got = await lazy.answers(400)  # it reads on, and so does its server
        assert [id for id, _ in got] == list(range(1, 401))


@over
async def test_two_who_ask_a_lot_take_turns(kind: str, tmp_path: Path) -> None:
    order: list[bytes] = []

    def handle(request: bytes) -> bytes:
        order.append(request)
        return b""

    async with asked(handle, kind, tmp_path, in_flight_max=1000) as (one, _, server):
        async with raw(server.urls[0]) as stream:
            await stream.send(encode(client_hello(offers=[])))
            await read_hello(stream)
            other = Peer(stream)
            await other.stream.send(b"".join(ask(n, b"2") for n in range(1, 501)))
            await one.stream.send(b"".join(ask(n, b"1") for n in range(1, 501)))
            await one.answers(500)
            await other.answers(500)
    # Neither is served to its end while the other waits with all that it has sent.
    first = order.index(b"1"), order.index(b"2")
    assert max(first) < 500


@over
async def test_a_tap_between_two_requests_of_one_read(kind: str, tmp_path: Path) -> None:
    """Who wants to see each frame is obeyed at once, and what was read already is not lost."""
    opened: list[Any] = []

    def handle(request: bytes) -> bytes:
        if request == b"tap":
            opened.append(l5.tap(tmp_path / "frames.pcapng"))
        return request

    async with asked(handle, kind, tmp_path) as (peer, session, _):
        await peer.stream.send(ask(1, b"tap") + b"".join(ask(n) for n in range(2, 40)))
        assert [id for id, _ in await peer.answers(39)] == list(range(1, 40))
        assert session.lane.answered <= 1  # its own answer may still go the short way
        opened[0].close()
        assert opened[0].frames >= 2 * 38
        await peer.stream.send(ask(40))
        await peer.answers(1)
        assert session.lane.answered >= 1


@over
async def test_a_handler_that_closes_its_own_connection(kind: str, tmp_path: Path) -> None:
    servers: list[l5.Server] = []

    def handle(request: bytes) -> bytes:
        for session in list(servers[0]._sessions):
            session.close()
        return request

    async with asked(handle, kind, tmp_path) as (peer, _, server):
        servers.append(server)
        await peer.stream.send(ask(1) + ask(2))
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            for _ in range(3):
                await peer.frame()


# ---- what a client finds in one read


async def test_answers_in_every_shape() -> None:
    async def script(peer: Peer) -> None:
        reply = frame(Kind.RESPONSE, 1, b"one")
        for cut in range(1, len(reply)):
            _, id, _ = await peer.frame()
            reply = frame(Kind.RESPONSE, id, b"one")
            await peer.stream.send(reply[:cut])
            await anyio.wait_all_tasks_blocked()
            await peer.stream.send(reply[cut:])
        _, id, _ = await peer.frame()
        await peer.stream.send(frame(Kind.HEARTBEAT, 0, BEAT) * 2 + frame(Kind.RESPONSE, id, b"hb"))
        _, id, _ = await peer.frame()
        await peer.stream.send(frame(Kind.HEARTBEAT, 0, BEAT))
        await anyio.wait_all_tasks_blocked()
        await peer.stream.send(frame(Kind.RESPONSE, id, b""))
        _, id, _ = await peer.frame()
        await peer.stream.send(frame(Kind.RESPONSE, id, b"left", Flag.MORE))
        await peer.stream.send(frame(Kind.RESPONSE, id, b"right"))
        _, id, _ = await peer.frame()
        await peer.stream.send(frame(Kind.ERROR, id, pack_error("Odd", "not today")))
        await peer.frame()  # the end

    async with answered_by(script) as (connection, lane):
        for _ in range(len(frame(Kind.RESPONSE, 1, b"one")) - 1):
            assert await connection.request(b"x") == b"one"
        assert await connection.request(b"x") == b"hb"
        assert (connection.heartbeat.sequence, connection.heartbeat.busy_share) == (5, 0.25)
        assert await connection.request(b"x") == b""
        assert await connection.request(b"x") == b"leftright"
        with pytest.raises(l5.RequestFailed, match="not today"):
            await connection.request(b"x")
        assert lane.in_flight == 0


async def test_answers_of_many_tasks_in_one_read() -> None:
    async def script(peer: Peer) -> None:
        for _ in range(5):
            ids = [(await peer.frame())[1] for _ in range(6)]
            replies = [frame(Kind.RESPONSE, id, b"%d" % id) for id in reversed(ids)]
            await peer.stream.send(b"".join(replies))
        await peer.frame()

    async with answered_by(script) as (connection, lane):
        for turn in range(5):
            got: list[bytes] = []

            async def one(got: list[bytes] = got) -> None:
                got.append(await connection.request(b"x"))

            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(one)
            assert sorted(map(int, got)) == list(range(6 * turn + 1, 6 * turn + 7))
        assert lane.in_flight == 0


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (frame(Kind.RESPONSE, 999, b"x"), l5.RemoteProtocolError),
        (pack_header(1 << 30, Kind.RESPONSE, 0, 1), l5.RemoteProtocolError),
        (struct.pack("<IBBHQ", 1, Kind.RESPONSE, 0, 1, 1) + b"x", l5.RemoteProtocolError),
        (frame(Kind.HEARTBEAT, 0, BEAT[:11]), l5.RemoteProtocolError),
        (frame(Kind.RESPONSE, 1, b"half")[:-1], anyio.BrokenResourceError),
        (b"", anyio.BrokenResourceError),
    ],
)
async def test_a_server_that_breaks_a_rule(reply: bytes, error: type[Exception]) -> None:
    async def script(peer: Peer) -> None:
        await peer.frame()
        if reply:
            await peer.stream.send(reply)
            await anyio.wait_all_tasks_blocked()

    async with answered_by(script) as (connection, _):
        with anyio.fail_after(60), pytest.raises(error):
            await connection.request(b"x")
        with pytest.raises(error):
            await connection.request(b"x")


async def test_a_cancelled_request_and_its_late_answer() -> None:
    told: list[tuple[int, int]] = []

    async def script(peer: Peer) -> None:
        _, first, _ = await peer.frame()
        for _ in range(2):
            kind, id, _ = await peer.frame()
            told.append((kind, id - first))
        late = frame(Kind.RESPONSE, first, b"late")
        await peer.stream.send(late + frame(Kind.RESPONSE, first + 1, b"next"))
        await peer.frame()

    async with answered_by(script) as (connection, lane):
        async with anyio.create_task_group() as group:
            group.start_soon(connection.request, b"x")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert lane.in_flight == 1  # its answer is owed
        assert await connection.request(b"x") == b"next"
        assert told == [(Kind.CANCEL, 0), (Kind.REQUEST, 1)]
        assert lane.in_flight == 0
        assert connection.statistics().late_answers == 1


@over
async def test_a_request_that_the_socket_takes_in_part(kind: str, tmp_path: Path) -> None:
    """The channel sends the rest, and the lane stands back until it has."""
    async with l5.serve(echo, url(kind, tmp_path), transports=kind) as server:
        async with await l5.connect(server.urls[0], transports=kind) as connection:
            channel: Any = connection._session.channel
            channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            payloads = [bytes([n]) * 15_000 for n in range(40)]
            got: dict[int, bytes] = {}

            async def one(n: int) -> None:
                got[n] = await connection.request(payloads[n])

            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for n in range(40):
                        group.start_soon(one, n)
            assert [got[n] for n in range(40)] == payloads
            lane: Any = connection._session.lane
            assert not lane.unsent


@over
async def test_another_thread_is_refused(kind: str, tmp_path: Path) -> None:
    async with l5.serve(echo, url(kind, tmp_path), transports=kind) as server:
        async with await l5.connect(server.urls[0], transports=kind) as connection:
            lane: Any = connection._session.lane
            with pytest.raises(anyio.BusyResourceError):
                await anyio.to_thread.run_sync(lane.request, b"x")
            assert await connection.request(b"x") == b"x"


async def test_a_lane_is_made_once_and_of_what_is_open() -> None:
    lane = native.Lane(0, 100, 100)
    with pytest.raises(RuntimeError, match="made once"):
        lane.__init__(0, 100, 100)
    with pytest.raises(ValueError, match="open descriptor"):
        native.Lane(-1, 100, 100)
    poller = native.Poller(0)
    poller.add_lane(lane, object())
    assert poller.lanes == 1
    with pytest.raises(ValueError, match="a poller already"):
        poller.add_lane(lane, object())
    with pytest.raises(ValueError, match="has a lane already"):
        poller.add_lane(native.Lane(0, 100, 100), object())
    lane.close()
    assert poller.lanes == 0
    assert lane.request(b"x") is None
    assert lane.collect(1) is None
    with pytest.raises(ValueError, match="closed"):
        poller.add_lane(lane, object())
