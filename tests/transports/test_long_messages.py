"""Long messages on a socket stay there until somebody takes them: none piles up as an object."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import pytest

import l5
import l5.blocking

LONG = bytes(range(256)) * 80  # of which all that is sent here fits into any socket
COUNT = 4
UNIX = f"l5+unix://@l5-test-long-{os.getpid()}"


@contextmanager
def sender(url: str) -> Generator[tuple[str, threading.Event]]:
    """A server in threads: it sends long messages and a short one, and waits for the peer."""
    sent = threading.Event()

    def send(conn: l5.blocking.Connection) -> None:
        for number in range(COUNT):
            conn.send(bytes([number]) + LONG)
        conn.send(b"end")
        sent.set()
        conn.receive()

    with l5.blocking.serve(send, url, per="connection", transports="tcp,unix") as server:
        yield server.urls[0], sent


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["receive", "receive_into", "lease"])
@pytest.mark.parametrize(
    "url", [pytest.param("l5+tcp://127.0.0.1:0", id="tcp"), pytest.param(UNIX, id="unix")]
)
async def test_they_are_taken_one_by_one(url: str, way: str) -> None:
    buffer = bytearray(len(LONG) + 1)

    async def take(conn: l5.Connection) -> bytes:
        if way == "receive":
            return await conn.receive()
        if way == "receive_into":
            return bytes(buffer[: await conn.receive_into(buffer)])
        async with conn.lease() as message:
            with message.view as view:
                return bytes(view)

    with sender(url) as (place, sent):
        async with await l5.connect(place, transports="tcp,unix") as conn:
            await anyio.to_thread.run_sync(sent.wait)
            for number in range(COUNT):
                assert await take(conn) == bytes([number]) + LONG
                assert not conn._session.inbox
            assert await take(conn) == b"end"
            await conn.send(b"done")


@pytest.mark.parametrize(
    "url", [pytest.param("l5+tcp://127.0.0.1:0", id="tcp"), pytest.param(UNIX, id="unix")]
)
def test_threads_take_them_one_by_one(url: str) -> None:
    with sender(url) as (place, sent):
        with l5.blocking.connect(place, transports="tcp,unix") as conn:
            sent.wait()
            for number in range(COUNT):
                assert conn.receive() == bytes([number]) + LONG
                assert not conn._session.inbox
            assert conn.receive() == b"end"
            conn.send(b"done")
