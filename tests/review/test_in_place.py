"""Messages in place, while other tasks use the same connection."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import l5
from l5 import native

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


@pytest.fixture
def url() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as path:
        yield f"l5+shm://{Path(path) / 's'}?spin_us=0"


async def test_credit_that_a_reservation_held_up_is_sent_when_it_ends(url: str) -> None:
    count, size = 64, 4096

    async def feed(connection: l5.Connection) -> None:
        for _ in range(count):
            await connection.send(bytes(size))

    got = 0

    async def read(connection: l5.Connection) -> None:
        nonlocal got
        async for _ in connection:
            got += 1

    server = l5.serve(feed, url, per="connection")
    options = {"data_window": 65536, "ring": 65536, "segment": 8192, "max_message": 65536}
    async with server, await l5.connect(url, **options) as connection:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(read, connection)
                async with connection.reserve(100):
                    await anyio.sleep(0.2)  # the feed comes to a stop for want of credit
                    assert 0 < got < count
    assert got == count


async def test_request_is_cancelled_although_a_reservation_is_open(url: str) -> None:
    cancelled = anyio.Event()

    async def handle(payload: bytes) -> bytes:
        try:
            await anyio.sleep(30)
        except BaseException:
            cancelled.set()
            raise
        return payload

    async with l5.serve(handle, url), await l5.connect(url) as connection:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(connection.request, b"x")
                await anyio.sleep(0.05)
                async with connection.reserve(100):
                    group.cancel_scope.cancel()
            await cancelled.wait()
