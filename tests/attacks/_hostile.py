"""What attackers and their victims do, each in a process of its own (see `_stage`)."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any

import anyio

import l5
from tests.attacks._stage import Control


def hold(control: Control, url: str, count: int, options: dict[str, Any]) -> None:
    """Hold connections; say of each what it became, or why it was not made."""

    async def main() -> None:
        held: list[l5.Connection] = []
        for _ in range(count):
            try:
                held.append(await l5.connect(url, **options))
                report = held[-1].upgrade_report
                control.say(f"{held[-1].transport} {dict(report.reasons)}")
            except l5.ConnectError as error:
                control.say(f"refused {error}")
        await anyio.to_thread.run_sync(control.hear)
        for connection in held:
            assert (await connection.request(b"still")).lower() == b"still"
            await connection.aclose()
        control.say("all served")

    anyio.run(main)


def listen_silently(control: Control, url: str) -> None:
    """Shake hands with whoever comes, and never look at a message."""

    async def main() -> None:
        async def ignore(connection: l5.Connection) -> None:
            await anyio.sleep_forever()

        async with l5.serve(ignore, url, per="connection") as server:
            control.say(f"at {server.urls[0]}")
            # Nobody waits for messages in this loop, so nobody reads them.
            await anyio.to_thread.run_sync(control.hear)

    anyio.run(main)


def overrun(control: Control, url: str, what: str) -> None:
    """Send more than was agreed, frame by frame, until the server ends it; say what it said."""

    async def main() -> None:
        connection = await l5.connect(url)
        session: Any = connection._session
        piece = bytes(session.sends.segment_bytes)
        try:
            for number in range(1, 1000):
                id = 1 if what == "message" else number
                more = 0 if what == "requests" else 1
                payload = b"wait" if what == "requests" else piece
                while not session.try_frame(2, more, id, payload):
                    await session.hub.breathe()  # it may have ended
            await connection.receive()
        except anyio.BrokenResourceError as error:
            control.say(f"told {error}")
        await connection.aclose()

    anyio.run(main)


def begin(control: Control, url: str, count: int) -> None:
    """Begin so many long requests, and leave them at that."""

    async def main() -> None:
        connection = await l5.connect(url)
        session: Any = connection._session
        for number in range(1, count + 1):
            while not session.try_frame(2, 1, number, bytes(session.sends.segment_bytes)):
                await session.hub.breathe()
        session.window.next_id = count + 1
        await connection.request(b"after them")
        control.say("begun")
        await anyio.to_thread.run_sync(control.hear)

    anyio.run(main)


def talk(control: Control, url: str) -> None:
    """Send to everybody who connects, and say how much was sent when asked."""
    sent = 0

    async def main() -> None:
        async def on_connection(connection: l5.Connection) -> None:
            nonlocal sent
            while True:
                await connection.send(bytes(10_000))
                sent += 10_000

        async with l5.serve(on_connection, url, per="connection") as server:
            control.say(f"at {server.urls[0]}")
            while True:
                await anyio.to_thread.run_sync(control.hear)
                control.say(f"sent {sent}")

    anyio.run(main)


def never_read(control: Control, url: str) -> None:
    """Connect, and never look at what comes."""

    async def main() -> None:
        connection = await l5.connect(url)
        control.say(f"connected {connection.transport}")
        control.hear()  # blocks the loop: this is what the attack is

    anyio.run(main)


def read_slowly(control: Control, url: str) -> None:
    """Take what comes, hardly: a byte at a time from a socket, a message at a time from a ring."""

    async def main() -> None:
        connection = await l5.connect(url)
        control.say(f"connected {connection.transport}")
        session: Any = connection._session
        for _ in range(1000):
            if session.ring is not None:
                await connection.receive()
            else:
                with suppress(BlockingIOError):
                    os.read(session.channel.fileno(), 1)
            time.sleep(0.02)  # blocks the loop, as a peer may

    anyio.run(main)


def ask_and_never_read(control: Control, url: str, count: int) -> None:
    """Ask for so many answers and look at none."""

    async def main() -> None:
        connection = await l5.connect(url)
        session: Any = connection._session
        for number in range(1, count + 1):
            while not session.try_frame(2, 0, number, b"much"):
                await session.hub.breathe()
        control.say("asked")
        control.hear()

    anyio.run(main)


def pour(control: Control, silent: str, honest: str) -> None:
    """(A victim) send without end to one who never reads, and go on asking another."""
    sent = 0

    async def send(connection: l5.Connection) -> None:
        nonlocal sent
        with suppress(anyio.BrokenResourceError):
            while True:
                await connection.send(bytes(10_000))
                sent += 10_000

    async def main() -> None:
        async with await l5.connect(honest) as other, anyio.create_task_group() as tasks:
            connection = await l5.connect(silent)
            tasks.start_soon(send, connection)
            control.say("pouring")
            while True:
                await anyio.to_thread.run_sync(control.hear)
                assert await other.request(b"still") == b"still"
                control.say(f"sent {sent}")

    anyio.run(main)


def keep_silent(control: Control, port: int, count: int) -> None:
    """Open many sockets and never speak."""
    sockets: list[socket.socket] = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        sockets.append(sock)
    control.say("silent")
    control.hear()
