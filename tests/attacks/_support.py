"""Victims, and the processes that attack them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.streams.text import TextReceiveStream

import l5
import l5.blocking

ROOT = Path(__file__).parent.parent.parent


class Ticker:
    """A task beside the attack: it counts how often the event loop let it run."""

    def __init__(self) -> None:
        self.ticks = 0

    async def run(self) -> None:
        while True:
            await anyio.sleep(0.001)
            self.ticks += 1

    async def more(self, count: int) -> None:
        """Wait until it has run so many times more."""
        until = self.ticks + count
        while self.ticks < until:
            await anyio.sleep(0.001)


@asynccontextmanager
async def ticking() -> AsyncIterator[Ticker]:
    ticker = Ticker()
    async with anyio.create_task_group() as group:
        group.start_soon(ticker.run)
        yield ticker
        group.cancel_scope.cancel()


async def attack(program: str, path: object, *cases: str) -> list[dict[str, Any]]:
    """Run a hostile process to its end; return what it says of each case."""
    command = [sys.executable, "-m", f"tests.attacks.{program}", str(path), *cases]
    done = await anyio.run_process(command, cwd=ROOT, stderr=None)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["case"] for one in found] == list(cases)
    return found


class Attacker:
    """A hostile server's process."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self._lines = TextReceiveStream(process.stdout)
        self._text = ""

    async def says(self) -> dict[str, Any]:
        while "\n" not in self._text:
            self._text += await self._lines.receive()
        line, self._text = self._text.split("\n", 1)
        return json.loads(line)


@asynccontextmanager
async def attacker(program: str, path: object, *cases: str) -> AsyncIterator[Attacker]:
    command = [sys.executable, "-m", f"tests.attacks.{program}", str(path), *cases]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        try:
            peer = Attacker(process)
            assert await peer.says() == {"listening": str(path)}
            yield peer
        finally:
            if process.returncode is None:
                process.kill()


async def echo(request: bytes) -> bytes:
    """Echo; what begins with v is read twice, with a pause between."""
    if request[:1] != b"v":
        return request
    first = sum(request)
    await anyio.lowlevel.checkpoint()
    return b"same" if sum(request) == first else b"else"


@asynccontextmanager
async def victim(
    url: str, handler: Any = echo, **options: Any
) -> AsyncIterator[tuple[l5.Server, Ticker]]:
    """A server with a client that it must go on serving, and a task that must go on ticking."""
    async with l5.serve(handler, url, **options) as server, ticking() as ticker:
        yield server, ticker
        await until(lambda: not server.statistics().connections)


def echo_in_thread(request: bytes) -> bytes:
    """As `echo`, as a plain function that sleeps between its two looks."""
    if request[:1] != b"v":
        return request
    first = sum(request)
    time.sleep(0.001)
    return b"same" if sum(request) == first else b"else"


@asynccontextmanager
async def blocking_victim(
    url: str, **options: Any
) -> AsyncIterator[tuple[l5.blocking.Server, Ticker]]:
    """A server whose connections have a thread each; the task ticks in the loop beside them."""
    with l5.blocking.serve(echo_in_thread, url, **options) as server:
        async with ticking() as ticker:
            yield server, ticker
            await until(lambda: not server.statistics().connections)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.002)


@asynccontextmanager
async def bystander(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A sound client that asks all the while; what it yields waits for more answers."""
    answered = 0
    async with await l5.connect(url) as connection, anyio.create_task_group() as group:

        async def ask() -> None:
            nonlocal answered
            while True:
                assert await connection.request(b"e bystander") == b"e bystander"
                answered += 1
                await anyio.sleep(0.002)

        async def some_more() -> None:
            now = answered
            await until(lambda: answered >= now + 3)

        group.start_soon(ask)
        yield some_more
        await some_more()
        group.cancel_scope.cancel()


def resident_bytes() -> int:
    if "L5_SANITIZED" in os.environ:
        return 0  # a sanitizer keeps what was freed
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held() -> tuple[int, int]:
    """Return how many descriptors and how many mappings of memfds this process has."""
    with open("/proc/self/maps") as file:
        mappings = sum("/memfd:" in line for line in file)
    return len(os.listdir("/proc/self/fd")), mappings
