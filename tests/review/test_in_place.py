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
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(read, connection)
                async with connection.reserve(100):
                    while not got:
                        await anyio.sleep(0.001)
                    await anyio.sleep(0.05)  # the feed comes to a stop for want of credit
                    assert got < count
    assert got == count


async def test_request_is_cancelled_although_a_reservation_is_open(url: str) -> None:
    begun, cancelled = anyio.Event(), anyio.Event()

    async def handle(payload: bytes) -> bytes:
        begun.set()
        try:
            await anyio.sleep_forever()
        except BaseException:
            cancelled.set()
            raise
        return payload

    async with l5.serve(handle, url), await l5.connect(url) as connection:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(connection.request, b"x")
                await begun.wait()
                async with connection.reserve(100):
                    group.cancel_scope.cancel()
            await cancelled.wait()


async def test_a_reserved_request_beyond_the_window_waits_outside_the_ring(tmp_path: Path) -> None:
    """The answer that it waits for needs credit, which is a frame of ours."""
    gate, begun = anyio.Event(), anyio.Event()

    async def handle(request: bytes) -> bytes:
        begun.set()
        await gate.wait()
        return request * 100_000

    small = {"ring_bytes": 64 << 10, "segment_bytes": 16 << 10, "credit_bytes": 16 << 10}
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(handle, url, in_flight_max=1), await l5.connect(url, **small) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.request, b"first")
            await begun.wait()
            async with client.reserve(6) as slot:
                with slot.view as view:
                    view[:] = b"second"
                gate.set()
                assert await slot.request() == b"second" * 100_000


async def test_a_reserved_message_beyond_the_window_waits_outside_the_ring(tmp_path: Path) -> None:
    """The peer takes it only when it has sent what it has to say, for which it needs credit."""
    small = {"data_window_bytes": 16 << 10, "ring_bytes": 64 << 10, "segment_bytes": 16 << 10}
    size, count = 4096, 40

    async def say_much_then_listen(connection: l5.Connection) -> None:
        for _ in range(count):
            await connection.send(bytes(size))
        for _ in range(count):
            assert len(await connection.receive()) == size

    async def listen(client: l5.Connection) -> None:
        for _ in range(count):
            await client.receive()

    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(say_much_then_listen, url, per="connection", **small):
        async with await l5.connect(url, **small) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(listen, client)
                for _ in range(count):
                    async with client.reserve(size) as slot:
                        await slot.send()
            with pytest.raises(anyio.EndOfStream):
                await client.receive()
