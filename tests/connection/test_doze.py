"""The short sleep of a client (`l5._doze`): what is usual, and what is not."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import l5
from l5 import native

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]
over = pytest.mark.parametrize("kind", ["shm", "unix"])
AWHILE_S = 0.02


class Served:
    """What the server's thread was asked, and what became of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cancelled: int = 0
        self.stop: Callable[[], object] = lambda: None

    async def handle(self, request: bytes) -> bytes:
        if request == b"fail":
            raise ValueError("as asked")
        if request.startswith(b"late"):
            await anyio.sleep(AWHILE_S)
        if request == b"never":
            try:
                await anyio.sleep_forever()
            except BaseException:
                self.cancelled += 1
                raise
        return request


@contextmanager
def served(folder: Path, name: str = "s") -> Generator[Served]:
    """Serve from another thread, which has a loop of its own."""
    told = Served(f"l5+unix://{folder}/{name}")
    with anyio.from_thread.start_blocking_portal() as portal:
        manager = portal.wrap_async_context_manager(l5.serve(told.handle, told.url, spin_us=0))
        with manager as server:
            told.stop = lambda: portal.call(server.stop, 0.0)
            yield told


@asynccontextmanager
async def connected(told: Served, kind: str) -> AsyncGenerator[tuple[l5.Connection, Any]]:
    transports = "shm" if kind == "shm" else "unix"
    async with await l5.connect(told.url, spin_us=0, transports=transports) as connection:
        assert connection.transport == kind
        yield connection, connection._session.hub


@over
async def test_a_client_that_does_not_spin_dozes(kind: str, tmp_path: Path) -> None:
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, hub):
            await connection.request(b"late")
            before, drives = hub.poller.rests, hub.sleeps
            for number in range(20):
                assert await connection.request(b"late%d" % number) == b"late%d" % number
            # One of 64 goes the long way, and so does who finds its answer while it arms.
            assert hub.poller.rests - before >= 15
            assert hub.sleeps - drives <= 5
            assert connection.statistics().in_flight == 0
            assert l5_loop_sleeps(hub) >= 15


def l5_loop_sleeps(hub: Any) -> int:
    from l5._statistics import loop_statistics_of

    return loop_statistics_of(hub).sleeps


@over
async def test_cancelled_in_a_doze(kind: str, tmp_path: Path) -> None:
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, hub):
            await connection.request(b"late")
            for _ in range(3):
                with anyio.move_on_after(AWHILE_S) as scope:
                    await connection.request(b"never")
                assert scope.cancelled_caught
                assert hub._driver is None
                assert await connection.request(b"x") == b"x"
            with anyio.fail_after(10):
                while told.cancelled < 3 or connection.statistics().in_flight:
                    await connection.request(b"late")


@over
async def test_answers_that_come_as_their_requests_are_cancelled(kind: str, tmp_path: Path) -> None:
    """Whoever takes the answer: none is counted twice, none is kept for somebody else."""
    chance = random.Random(5)
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, hub):
            for number in range(200):
                wish = b"late%d" % number
                with anyio.move_on_after(chance.uniform(0.8, 1.2) * AWHILE_S / 8):
                    assert await connection.request(wish[4:]) == wish[4:]
                if number % 20 == 0:
                    with anyio.move_on_after(chance.uniform(0.9, 1.1) * AWHILE_S):
                        assert await connection.request(wish) == wish
            with anyio.fail_after(10):
                while connection.statistics().in_flight:
                    assert await connection.request(b"late") == b"late"
            assert hub._driver is None and not hub._parked


@over
async def test_tasks_that_ask_while_one_dozes(kind: str, tmp_path: Path) -> None:
    """Theirs may be answered first, by whoever drives."""
    chance = random.Random(7)

    async def ask(connection: l5.Connection, name: int) -> None:
        for number in range(15):
            wish = b"%s%d-%d" % (chance.choice([b"late", b""]), name, number)
            if chance.random() < 0.2:
                with anyio.move_on_after(chance.uniform(0, 1.5) * AWHILE_S):
                    assert await connection.request(wish) == wish
            else:
                assert await connection.request(wish) == wish

    with served(tmp_path) as told, served(tmp_path, "other") as other:
        async with connected(told, kind) as (first, _), connected(other, kind) as (second, _):
            async with anyio.create_task_group() as tasks:
                for name in range(6):
                    tasks.start_soon(ask, (first, second)[name % 2], name)
            with anyio.fail_after(10):
                for connection in (first, second):
                    while connection.statistics().in_flight:
                        await connection.request(b"late")


@over
async def test_what_comes_is_not_the_answer(kind: str, tmp_path: Path) -> None:
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, _):
            await connection.request(b"late")
            with pytest.raises(l5.RequestFailed, match="as asked"):
                await connection.request(b"fail")
            long = b"late" + bytes(200_000)  # its answer comes in segments
            assert await connection.request(long) == long
            assert await connection.request(b"late") == b"late"


@over
async def test_the_server_leaves_in_the_middle_of_a_doze(kind: str, tmp_path: Path) -> None:
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, hub):
            await connection.request(b"late")
            failures: list[Exception] = []

            async def ask() -> None:
                try:
                    await connection.request(b"never")
                except Exception as error:
                    failures.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.sleep(AWHILE_S)
                with anyio.fail_after(20):
                    await anyio.to_thread.run_sync(told.stop)
            assert isinstance(failures[0], anyio.BrokenResourceError), failures
            assert hub._driver is None


@over
async def test_closed_in_the_middle_of_a_doze(kind: str, tmp_path: Path) -> None:
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, hub):
            await connection.request(b"late")

            async def ask() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await connection.request(b"never")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.sleep(AWHILE_S)
                await connection.aclose()
            assert hub._driver is None
            assert hub._watcher is None  # given back, although somebody drove when it was closed


@over
async def test_an_answer_that_another_task_takes_meanwhile(kind: str, tmp_path: Path) -> None:
    """Who dozes finds its request answered, and does not look for the answer again."""
    with served(tmp_path) as told:
        async with connected(told, kind) as (connection, _):
            await connection.request(b"late")
            got: list[bytes] = []

            async def ask() -> None:
                got.append(await connection.request(b"late1"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                with anyio.fail_after(10):
                    while not got:
                        connection._session.on_ready()
                        await anyio.lowlevel.checkpoint()
            assert got == [b"late1"]
            assert connection.statistics().in_flight == 0
            assert await connection.request(b"late2") == b"late2"
