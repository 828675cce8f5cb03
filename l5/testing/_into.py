"""Conformance: messages received into the application's own memory."""

from __future__ import annotations

import array

import anyio
import pytest

import l5

from ._harness import Harness, pattern, settle


class IntoTests(Harness):
    """`receive_into`, with the same outcome as `receive` on every transport."""

    async def test_messages_of_every_size_into_a_buffer(self, directory: str) -> None:
        long = 16384
        sizes = [0, 1, 64, long - 1, long, long + 1, self.segment_bytes, self.max_message_bytes]
        sizes = sorted({size for size in sizes if size <= self.max_message_bytes})
        buffer = bytearray(self.max_message_bytes)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            for sender, receiver in ((client, server), (server, client)):
                group.start_soon(_send_all, sender, [pattern(size) for size in sizes])
                for size in sizes:
                    buffer[:] = b"\xff" * len(buffer)
                    assert await receiver.receive_into(buffer) == size
                    assert buffer[:size] == pattern(size)
                    assert buffer[size:].count(0xFF) == len(buffer) - size

    async def test_one_buffer_is_filled_piece_by_piece(self, directory: str) -> None:
        """Far enough for a transport to take another way of copying, at every alignment."""
        size = min(self.segment_bytes - 7, 40_001)
        count = 6 * 1024 * 1024 // size
        buffer = bytearray(count * size + 64)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            messages = [pattern(size, seed=n) for n in range(8)]
            group.start_soon(_send_all, client, [messages[n % 8] for n in range(count)])
            with memoryview(buffer) as view:
                for number in range(count):
                    place = view[number * size : (number + 1) * size]
                    assert await server.receive_into(place) == size
            for number in range(count):
                assert buffer[number * size : (number + 1) * size] == messages[number % 8]
            assert not any(buffer[count * size :])

    async def test_into_any_writable_buffer(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            numbers = array.array("i", [0, 0, 0])
            await client.send(array.array("i", [1, -2, 3]))
            assert await server.receive_into(numbers) == len(numbers) * numbers.itemsize
            assert list(numbers) == [1, -2, 3]
            for wrong in (b"read-only", memoryview(bytearray(64))[::2], "text"):
                await client.send(b"waits")
                with pytest.raises((BufferError, TypeError), match="receive_into"):
                    await server.receive_into(wrong)  # type: ignore[arg-type]
                assert await server.receive() == b"waits"

    async def test_a_buffer_that_is_too_short(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for size in (11, self.segment_bytes, self.segment_bytes + 1):
                buffer = bytearray(size)
                await client.send(pattern(size))
                await client.send(b"next")
                for _ in range(2):
                    with pytest.raises(l5.BufferTooShort) as caught:
                        await server.receive_into(memoryview(buffer)[:-1])
                    assert (caught.value.size_bytes, caught.value.buffer_bytes) == (size, size - 1)
                assert not any(buffer)
                assert await server.receive_into(buffer) == size
                assert buffer == pattern(size)
                assert await server.receive() == b"next"

    async def test_all_ways_to_receive_take_turns(self, directory: str) -> None:
        messages = [pattern(20_000 + n if n % 5 else n, seed=n) for n in range(120)]
        messages = [message[: self.segment_bytes] for message in messages]
        buffer = bytearray(self.segment_bytes)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(_send_all, client, messages)
            for number, message in enumerate(messages):
                if number % 3 == 0:
                    assert await server.receive() == message
                elif number % 3 == 1:
                    assert await server.receive_into(buffer) == len(message)
                    assert buffer[: len(message)] == message
                else:
                    async with server.lease() as lease:
                        with lease.view as view:
                            assert bytes(view) == message

    async def test_a_cancelled_one_takes_no_message(self, directory: str) -> None:
        buffer = bytearray(100)
        async with self.pair(directory) as (client, server):
            with anyio.move_on_after(0.02):
                await server.receive_into(buffer)
                raise AssertionError("received what was never sent")
            await client.send(b"late")
            assert await server.receive_into(buffer) == 4
            assert buffer[:4] == b"late"

    async def test_it_waits_and_ends_with_the_stream(self, directory: str) -> None:
        buffer = bytearray(100)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            got: list[bytes] = []

            async def receive() -> None:
                got.append(bytes(buffer[: await server.receive_into(buffer)]))

            group.start_soon(receive)
            await settle()
            with pytest.raises(anyio.BusyResourceError):
                await server.receive_into(bytearray(1))
            await client.send(b"late")
            while not got:
                await settle()
            assert got == [b"late"]
            await client.aclose()
            with pytest.raises(anyio.EndOfStream):
                await server.receive_into(buffer)
            await server.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await server.receive_into(buffer)


async def _send_all(connection: l5.Connection, messages: list[bytes]) -> None:
    for message in messages:
        await connection.send(message)
