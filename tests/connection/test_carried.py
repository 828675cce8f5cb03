"""Heartbeats over sockets go in front of an answer, where one goes out in time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

import l5
from l5 import native
from l5._frames import HEADER_BYTES, Kind
from l5._heartbeat import PAYLOAD
from l5._hello import ServerHello, encode
from l5._statistics import frames_sent
from tests.connection._preloaded import compiled, told_by
from tests.connection._raw import Peer, ask, client_hello, frame, raw, read_hello
from tests.connection.test_lanes import over, url
from tests.pure._hellos import LIMITS

pytestmark = pytest.mark.anyio
needs_c = pytest.mark.skipif(not native.available, reason=native.reason)


def beat(sequence: int, busy: int = 0) -> bytes:
    return frame(Kind.HEARTBEAT, 0, PAYLOAD.pack(sequence, busy))


@asynccontextmanager
async def asked(handler: Any, kind: str, folder: Path) -> AsyncGenerator[tuple[Peer, Any]]:
    """A server with a raw client that wants to hear: the client, and the server's session."""
    limits = msgspec.structs.replace(LIMITS, heartbeat_ms=60_000, segment_bytes=1 << 15)
    async with l5.serve(handler, url(kind, folder), transports=kind, heartbeat_ms=1) as server:
        async with raw(server.urls[0]) as stream:
            await stream.send(encode(client_hello(offers=[], limits=limits)))
            hello = await read_hello(stream)
            assert isinstance(hello, ServerHello), hello
            while not server._sessions:
                await anyio.lowlevel.checkpoint()
            (session,) = server._sessions
            session.hub.beats.look()  # it is told, and not again before a minute
            with anyio.fail_after(60):
                yield Peer(stream), session


def look_anew(session: Any) -> int:
    """Have the server tell its clients, as if an interval had passed; return what it said."""
    beats = session.hub.beats
    beats._due_ns = beats._clients[session].due_ns = 0
    beats.look()
    return beats.sequence


@needs_c
@over
@pytest.mark.parametrize("aside", [0, 1], ids=["lane", "channel"])
async def test_it_goes_in_front_of_the_answer(kind: str, aside: int, tmp_path: Path) -> None:
    async with asked(lambda size: bytes(int(size)), kind, tmp_path) as (peer, session):
        session.lane.aside += aside
        sizes = [0, 64, 3_000, 16_384, 20_000]
        for number, size in enumerate(sizes, 1):
            sequence = look_anew(session)
            await peer.stream.send(ask(number, b"%d" % size))
            expected = len(beat(0)) + len(frame(Kind.RESPONSE, number, bytes(size)))
            data = b""
            while len(data) < expected:
                data += await peer.stream.receive()
            assert PAYLOAD.unpack_from(data, HEADER_BYTES)[0] == sequence
            assert data[len(beat(0)) :] == frame(Kind.RESPONSE, number, bytes(size))
        await peer.stream.send(ask(9, b"1"))
        assert await peer.answers(1) == [(9, bytes(1))] and not peer.data
        assert frames_sent(session) == 2 * len(sizes) + 1


@needs_c
@over
async def test_of_several_that_wait_the_last_one_goes(kind: str, tmp_path: Path) -> None:
    async with asked(bytes.upper, kind, tmp_path) as (peer, session):
        for number in range(1, 4):
            alone = session.channel.carry(Kind.HEARTBEAT, 0, 0, PAYLOAD.pack(number, 0))
            assert alone is (number == 1)
        await peer.stream.send(ask(1))
        expected = beat(3) + frame(Kind.RESPONSE, 1, b"Q")
        while len(peer.data) < len(expected):
            peer.data += await peer.stream.receive()
        assert peer.data == expected
        peer.data = b""
        assert session.channel.carry(Kind.HEARTBEAT, 0, 0, PAYLOAD.pack(4, 0))
        session.lane.aside += 1
        await peer.stream.send(ask(2))
        expected = beat(4) + frame(Kind.RESPONSE, 2, b"Q")
        while len(peer.data) < len(expected):
            peer.data += await peer.stream.receive()
        assert peer.data == expected


@needs_c
@over
async def test_what_waits_for_an_answer_for_too_long_goes_alone(kind: str, tmp_path: Path) -> None:
    done = anyio.Event()

    async def slow(request: bytes) -> bytes:
        await done.wait()
        return request

    async with asked(slow, kind, tmp_path) as (peer, session):

        async def tell(condition: Callable[[], bool] = lambda: True) -> int:
            with anyio.fail_after(60):
                while not condition():
                    await anyio.sleep(0.001)
            return look_anew(session)

        await tell()  # nothing was asked: it waits for the first answer, however long
        await peer.stream.send(ask(1))
        sequence = await tell(lambda: session.window.handling == 1)
        data = b""
        while len(data) < len(beat(0)):
            data += await peer.stream.receive()
        # It had waited, the client has asked meanwhile: alone, and not in front of itself.
        assert len(data) == len(beat(0))
        assert PAYLOAD.unpack(data[-PAYLOAD.size :])[0] == sequence
        last = await tell()
        done.set()
        data = b""
        expected = len(beat(0)) + len(frame(Kind.RESPONSE, 1, b"q"))
        while len(data) < expected:
            data += await peer.stream.receive()
        assert len(data) == expected and data.endswith(frame(Kind.RESPONSE, 1, b"q"))
        assert PAYLOAD.unpack_from(data, HEADER_BYTES)[0] == last


async def test_a_tap_sees_it_as_a_frame(tmp_path: Path) -> None:
    async with l5.serve(bytes.upper, "l5://127.0.0.1:0", transports="tcp") as server:
        async with await l5.connect(server.urls[0]) as connection:
            asked = connection.statistics().requests_sent
            with l5.tap(tmp_path / "frames") as tap, anyio.fail_after(60):
                # Two of them at both ends, beside what is asked and answered.
                while tap.frames < 4 * (connection.statistics().requests_sent - asked) + 4:
                    await connection.request(b"x")
            assert connection.heartbeat.sequence >= 2


PROGRAM = """
import sys, anyio, l5
from l5._frames import Kind
from l5._heartbeat import PAYLOAD

SIZES = [0, 1, 64, 3000, 64, 20000]

async def main(url, kind, aside):
    async def handle(request):
        nonlocal told
        for session in server._sessions:
            told += 1
            session.channel.carry(Kind.HEARTBEAT, 0, 0, PAYLOAD.pack(told, 0))
        return request
    told = 0
    async with l5.serve(handle, url, transports=kind, heartbeat_ms=60_000) as server:
        async with await l5.connect(server.urls[0], transports=kind) as connection:
            await connection.request(b"")
            for session in server._sessions:
                session.lane.aside += aside
            for number in range(300):
                text = bytes([number % 251]) * SIZES[number % len(SIZES)]
                assert await connection.request(text) == text
                assert connection.heartbeat.sequence == told == number + 2
            assert (session.lane.answered > 100) == (not aside), session.lane.answered

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@needs_c
@pytest.mark.bare
@pytest.mark.checkout
@pytest.mark.parametrize("aside", ["0", "1"], ids=["lane", "channel"])
def test_frames_are_whole_wherever_the_socket_cuts_them(aside: str, tmp_path: Path) -> None:
    library = compiled("short_sends", tmp_path)
    told_by(library, "-c", PROGRAM, f"l5+unix://{tmp_path}/s", "unix", aside)
