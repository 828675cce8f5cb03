"""What attackers and their victims do, each in a process of its own (see `_stage`)."""

from __future__ import annotations

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
            assert await connection.request(b"still") == b"still"
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
