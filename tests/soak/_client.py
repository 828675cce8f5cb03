"""A client process of a soak: ``python -m tests.soak._client PLAN``."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any

import anyio

import l5

from . import _sabotage
from ._ask import Asking
from ._process import Plan, Process, check_holdings, holdings
from ._talk import Talk, fork
from ._text import Incoming, Outgoing

KIB = 1 << 10


def random_options(rng: random.Random) -> dict[str, Any]:
    """Return options for a connection: small rings, so that everything wraps around, and others."""
    ring = rng.choice((64 * KIB, 64 * KIB, 128 * KIB, 1024 * KIB))
    segment = rng.choice((4 * KIB, ring // 4, ring // 8))
    return {
        "ring_bytes": ring,
        "segment_bytes": segment,
        "data_window_bytes": rng.choice((64 * KIB, 1024 * KIB)) + segment,
        "credit_bytes": segment * rng.choice((1, 2, 8)),
        "spin_us": rng.choice((0, 50, 50)),
        "strict": rng.random() < 0.1,
        "connect_timeout": 120.0,
        "hello_timeout": 120.0,
    }


class Client:
    """One process that opens one connection after the other, or a few at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._number = 0

    async def run(self) -> None:
        """Go on until the soak ends, or the referee sends SIGTERM, or enough was done."""
        process = self._process
        signal.signal(signal.SIGTERM, self._on_signal)
        process.log(what="up")
        while not process.board.begun:
            await anyio.sleep(0.02)
        await self._session()  # what libraries open once, they have opened now
        before = holdings()
        while not process.leaving:
            await self._some_sessions()
            await check_holdings(process, before, f"after {self._number} connections")
        process.log(what="closing")

    def _on_signal(self, *_: object) -> None:
        self._process.told = True

    async def _some_sessions(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(self._process.rng.choice((1, 1, 1, 2, 3))):
                group.start_soon(self._session)

    async def _session(self) -> None:
        process = self._process
        self._number += 1
        plan = process.plan
        stream = plan.slot << 48 | plan.generation << 32 | self._number
        rng = random.Random(f"{plan.seed} {stream}")
        index = rng.randrange(len(plan.servers))
        server = plan.servers[index]
        connection = await self._connect(rng, index, server)
        if connection is None:
            await anyio.sleep(0.2)
            return
        process.board.count(connections=1)
        name = f"s{index}"
        limit = rng.random() * 3 if rng.random() < 0.15 else None
        async with connection:
            if rng.random() < 0.03:
                fork(process, connection, rng)
            if server["kind"] == "talk":
                count = 1 + int(40 * rng.random() ** 2)
                outgoing, incoming = Outgoing(stream), Incoming(stream)
                use: Any = Talk(process, connection, name, rng, outgoing, incoming, count)
            else:
                count = 1 + int(60 * rng.random() ** 2)
                tasks = rng.choice((1, 1, 2, 6, 12))
                use = Asking(process, connection, name, rng, stream, count, tasks)
            with anyio.move_on_after(limit):
                await use.run()
            with process.board.waiting(f"close {use.label}"):
                await connection.aclose()

    async def _connect(
        self, rng: random.Random, index: int, server: dict[str, Any]
    ) -> l5.Connection | None:
        process = self._process
        options = random_options(rng)
        url = rng.choice(server["urls"])
        if rng.random() < 0.35:
            options["transports"] = ("unix",) if "unix" in url else ("tcp",)
        began = time.monotonic()
        try:
            with process.board.waiting(f"connect to s{index} {url}"):
                limit = rng.random() * 0.01 if rng.random() < 0.05 else None
                with anyio.move_on_after(limit):
                    return await l5.connect(url, **options)
            process.board.count(cancelled=1)
        except (l5.ConnectError, OSError, *_gone()) as error:
            process.log(what="refused", peer=f"s{index}", began=began, text=repr(error)[:400])
        return None


def _gone() -> tuple[type[Exception], ...]:
    return (anyio.BrokenResourceError, anyio.EndOfStream)


def main() -> None:
    """Run a client process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    process = Process(Plan(**json.loads(sys.argv[1])))
    _sabotage.commit(process.plan.sabotage)
    process.run(lambda: Client(process).run())


if __name__ == "__main__":
    main()
