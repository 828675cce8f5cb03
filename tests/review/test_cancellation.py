"""A request that is cancelled disturbs no other, even when it ends at the same moment."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from l5 import native

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.mark.parametrize("transport", ["unix", "shm"])
async def test_cancelled_when_it_is_done_spares_the_next(directory: str, transport: str) -> None:
    if transport == "shm" and not native.available:
        pytest.skip(native.reason)
    begun, done = anyio.Event(), anyio.Event()
    url = f"l5+{transport}://{Path(directory) / 's'}"

    async def handle(payload: bytes) -> bytes:
        if payload == b"first":
            begun.set()
            await done.wait()
        elif payload == b"second":
            workers: Any = server._workers
            first = next(w for w in workers._workers if w.session is not None and w.id == 1)
            done.set()  # it will go on and answer,
            workers.on_cancel(first.session, 1)  # and its cancellation comes just now
            await anyio.sleep(0.01)
        else:
            await anyio.sleep(0.01)
        return payload

    server = l5.serve(handle, url)
    answers: list[bytes] = []

    async def ask(connection: l5.Connection, payload: bytes) -> None:
        answers.append(await connection.request(payload))

    async with server, await l5.connect(url) as connection:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, connection, b"first")
                await begun.wait()
                group.start_soon(ask, connection, b"second")
                for _ in range(8):
                    group.start_soon(ask, connection, b"third")
    assert sorted(answers) == [b"first", b"second", *[b"third"] * 8]


@pytest.mark.parametrize("transport", ["unix", "shm"])
@pytest.mark.parametrize("late", [False, True])
async def test_a_handler_that_awaits_what_was_cancelled_fails_alone(
    directory: str, transport: str, late: bool, anyio_backend_name: str
) -> None:
    if transport == "shm" and not native.available:
        pytest.skip(native.reason)
    url = f"l5+{transport}://{Path(directory) / 's'}"

    async def handle(payload: bytes) -> bytes:
        if payload == b"cancelled":
            future = asyncio.get_running_loop().create_future()
            if late:
                asyncio.get_running_loop().call_soon(future.cancel)
            else:
                future.cancel()
            await future
        return payload

    # trio has no such thing: there any error stands for it.
    word = "CancelledError" if anyio_backend_name == "asyncio" else "RuntimeError"
    async with l5.serve(handle, url), await l5.connect(url) as connection:
        with anyio.fail_after(60):
            for _ in range(3):
                with pytest.raises(l5.RequestFailed, match=word):
                    await connection.request(b"cancelled")
                assert await connection.request(b"sound") == b"sound"
