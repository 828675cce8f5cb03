"""What the processes do that die at a step; see `_stepped`."""

from __future__ import annotations

import os

import anyio

import l5
from tests.attacks._stage import Control

LONG = 300_000
"""A message of several segments."""


def client(control: Control, url: str, step: int) -> None:
    """Ask a server short and long questions, and close."""

    async def main() -> None:
        async with await l5.connect(url, ring="64KiB") as connection:
            for size in (10, LONG, 10):
                assert await connection.request(bytes(size)) == bytes(size)
        control.say("survived")

    os.environ["L5_STEP"] = str(step)
    anyio.run(main)


def server(control: Control, url: str, step: int) -> None:
    """Echo messages to one client, and close after the one that says so."""

    async def main() -> None:
        over = anyio.Event()

        async def on_connection(connection: l5.Connection) -> None:
            async for message in connection:
                if message == b"end":
                    await connection.aclose()
                    break
                await connection.send(message)
            over.set()

        async with l5.serve(on_connection, url, per="connection") as serving:
            control.say(f"at {serving.urls[0]}")
            await over.wait()
        control.say("survived")

    os.environ["L5_STEP"] = str(step)
    anyio.run(main)
