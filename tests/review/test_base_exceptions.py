"""Handlers raise what is no `Exception`: all but what is meant for the program fails a request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import native

BINDS = ["shm", "unix"] if native.available else ["unix"]


class Stop(BaseException):
    """What nobody knows."""


ODD: dict[bytes, Callable[[], BaseException]] = {
    b"stop": Stop,
    b"exit": GeneratorExit,
    b"group": lambda: BaseExceptionGroup("some", [Stop(), ValueError()]),
}
NAMES = {b"stop": "Stop", b"exit": "GeneratorExit", b"group": "BaseExceptionGroup"}


def plain(request: bytes) -> bytes:
    if request in ODD:
        raise ODD[request]()
    return request


def with_context(request: bytes, context: l5.RequestContext) -> bytes:
    del context
    return plain(request)


async def at_once(request: bytes) -> bytes:
    return plain(request)


async def later(request: bytes) -> bytes:
    await anyio.lowlevel.checkpoint()
    return plain(request)


class Eventually:
    """Can be awaited, and is no coroutine."""

    def __init__(self, request: bytes) -> None:
        self.request = request

    def __await__(self) -> Generator[Any, Any, bytes]:
        return at_once(self.request).__await__()


@pytest.mark.anyio
@pytest.mark.parametrize("bind", BINDS)
@pytest.mark.parametrize("handler", [plain, with_context, at_once, later, Eventually])
async def test_they_fail_the_request(tmp_path: Path, bind: str, handler: Any) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={bind}"
    async with l5.serve(handler, url) as server:
        async with await l5.connect(url) as connection, await l5.connect(url) as other:
            with anyio.fail_after(60):
                for request, name in NAMES.items():
                    with pytest.raises(l5.RequestFailed) as caught:
                        await connection.request(request)
                    assert caught.value.remote_type == name
                    assert await connection.request(b"x") == await other.request(b"x") == b"x"
        assert server.statistics().failed == len(NAMES)


@pytest.mark.anyio
@pytest.mark.parametrize("bind", BINDS)
async def test_they_close_the_connection(tmp_path: Path, bind: str) -> None:
    async def handle(connection: l5.Connection) -> None:
        plain(await connection.receive())

    url = f"l5+unix://{tmp_path}/s?transports={bind}"
    async with l5.serve(handle, url, per="connection"):
        for request in ODD:
            async with await l5.connect(url) as connection:
                with anyio.fail_after(60):
                    await connection.send(request)
                    with pytest.raises(anyio.EndOfStream):
                        await connection.receive()


@pytest.mark.anyio
@pytest.mark.parametrize("bind", BINDS)
@pytest.mark.parametrize("error", [ValueError, Stop])
async def test_a_cancelled_handler_raises_beside_its_cancellation(
    tmp_path: Path, bind: str, error: type[BaseException]
) -> None:
    """As a task group does whose tasks fail as they are cancelled; there both are in one group."""

    async def fail(started: anyio.Event) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    async def handle(request: bytes) -> bytes:
        if request == b"wait":
            async with anyio.create_task_group() as group:
                group.start_soon(fail, started)
                await anyio.sleep_forever()
        return request

    url = f"l5+unix://{tmp_path}/s?transports={bind}"
    async with l5.serve(handle, url) as server, await l5.connect(url) as connection:
        with anyio.fail_after(60):
            for _ in range(3):
                started = anyio.Event()
                async with anyio.create_task_group() as asking:
                    asking.start_soon(connection.request, b"wait")
                    await started.wait()
                    asking.cancel_scope.cancel()
                assert await connection.request(b"x") == b"x"
            while server.statistics().cancelled + server.statistics().failed < 3:
                await anyio.lowlevel.checkpoint()


PROGRAM = """
import sys
import anyio, anyio.lowlevel, l5

async def handle(request, error):
    await anyio.lowlevel.checkpoint()
    raise error

def raises(request):
    if {suspends}:
        return handle(request, {error})
    raise {error}

patient = dict(hello_timeout=200, connect_timeout=200)

async def main():
    async with (
        l5.serve(raises, {url!r}, hello_timeout=200),
        await l5.connect({url!r}, **patient) as connection,
    ):
        try:
            await connection.request(b"x")
        except l5.RequestFailed:
            print("went on")

options = dict(backend_options=dict(use_uvloop=True)) if {loop!r} == "uvloop" else dict()
anyio.run(main, backend="trio" if {loop!r} == "trio" else "asyncio", **options)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize(
    ("error", "suspends"), [("KeyboardInterrupt()", True), ("SystemExit(7)", False)]
)
def test_what_is_meant_for_the_program(
    tmp_path: Path, loop: str, error: str, suspends: bool
) -> None:
    url = f"l5+unix://{tmp_path}/s"
    program = PROGRAM.format(url=url, loop=loop, error=error, suspends=suspends)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode and "went on" not in done.stdout
    assert done.returncode == 7 or error.split("(", maxsplit=1)[0] in done.stderr
