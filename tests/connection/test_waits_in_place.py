"""Who waits for a long message takes that one, and leaves those behind it in the ring."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import l5
from l5 import native

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

MESSAGE_BYTES = 64 * 1024
COUNT = 3

Take = Callable[[l5.Connection], Awaitable[bytes]]


async def receive(connection: l5.Connection) -> bytes:
    return await connection.receive()


async def receive_into(connection: l5.Connection) -> bytes:
    buffer = bytearray(MESSAGE_BYTES)
    return bytes(buffer[: await connection.receive_into(buffer)])


async def lease(connection: l5.Connection) -> bytes:
    async with connection.lease() as message:
        assert message.in_place
        return bytes(message.view)


@asynccontextmanager
async def ends(
    folder: Path, **options: object
) -> AsyncGenerator[tuple[l5.Connection, l5.Connection]]:
    """Yield two ends of a connection in this loop, of which neither spins."""
    accepted: list[l5.Connection] = []
    there, over = anyio.Event(), anyio.Event()

    async def keep(connection: l5.Connection) -> None:
        accepted.append(connection)
        there.set()
        await over.wait()

    url = f"l5+unix://{folder}/s"
    async with l5.serve(keep, url, per="connection", spin_us=0) as server:
        async with await l5.connect(server.urls[0], spin_us=0, **options) as client:  # type: ignore[arg-type]
            await there.wait()
            yield client, accepted[0]
            over.set()


@pytest.mark.parametrize("take", [receive, receive_into, lease])
async def test_what_comes_behind_a_message_that_was_waited_for_is_left_in_the_ring(
    take: Take, tmp_path: Path
) -> None:
    async with ends(tmp_path) as (sender, receiver):
        taken: list[bytes] = []

        async def wait_for_one() -> None:
            taken.append(await take(receiver))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_one)
            await anyio.wait_all_tasks_blocked()
            for number in range(COUNT):
                await sender.send(bytes([number]) * MESSAGE_BYTES)
        for _ in range(1, COUNT):
            async with receiver.lease() as message:
                assert message.in_place
                taken.append(bytes(message.view))
        assert taken == [bytes([number]) * MESSAGE_BYTES for number in range(COUNT)]


@pytest.mark.parametrize("size_bytes", [100, 3 * 256 * 1024 + 1, 4 << 20])
async def test_a_message_of_any_length_is_received_into_a_buffer_that_waits_for_it(
    size_bytes: int, tmp_path: Path
) -> None:
    payload = bytes(range(251)) * (size_bytes // 251 + 1)
    buffer = bytearray(size_bytes)
    async with ends(tmp_path) as (sender, receiver):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sender.send, payload[:size_bytes])
            with anyio.fail_after(60):
                assert await receiver.receive_into(buffer) == size_bytes
        assert buffer == payload[:size_bytes]


async def test_what_is_too_long_for_the_buffer_that_waits_is_received_by_the_next(
    tmp_path: Path,
) -> None:
    async with ends(tmp_path) as (sender, receiver):
        async with anyio.create_task_group() as tasks:

            async def too_short() -> None:
                with pytest.raises(l5.BufferTooShort):
                    await receiver.receive_into(bytearray(MESSAGE_BYTES - 1))

            tasks.start_soon(too_short)
            await anyio.wait_all_tasks_blocked()
            await sender.send(bytes(MESSAGE_BYTES))
        assert await receiver.receive_into(bytearray(MESSAGE_BYTES)) == MESSAGE_BYTES


async def test_an_answer_among_messages_that_are_received_in_place_reaches_who_asked(
    tmp_path: Path,
) -> None:
    async with ends(tmp_path) as (client, server), anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(l5.RequestFailed):  # nobody serves requests there
                await client.request(b"ask")

        async def hear() -> None:
            assert await server.receive() == b"done"

        tasks.start_soon(ask)
        tasks.start_soon(hear)
        for _ in range(COUNT):
            await server.send(bytes(MESSAGE_BYTES))
        with anyio.fail_after(60):
            for _ in range(COUNT):
                assert await client.receive_into(bytearray(MESSAGE_BYTES)) == MESSAGE_BYTES
        await client.send(b"done")
