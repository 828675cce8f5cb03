"""Conformance: how a connection ends, by whom and in what state; bytes instead of messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

import l5

from ._harness import Harness, pattern, settle


class EndTests(Harness):
    """Closing, from either side and in every state."""

    async def test_closing_twice(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for end in (client, server):
                await end.aclose()
                await end.aclose()

    async def test_after_our_own_close(self, directory: str) -> None:
        async with self.pair(directory) as (client, _):
            await client.aclose()
            for operation in _operations(client):
                with pytest.raises(anyio.ClosedResourceError):
                    await operation()

    async def test_after_the_peers_close(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            await server.send(b"last words")
            await server.send(pattern(self.max_message_bytes // 8))
            await server.aclose()
            assert await client.receive() == b"last words"
            assert await client.receive() == pattern(self.max_message_bytes // 8)
            for _ in range(2):
                with pytest.raises(anyio.EndOfStream):
                    await client.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await client.send(b"x")
            with pytest.raises(anyio.BrokenResourceError):
                await client.request(b"x")
            await client.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await client.receive()

    async def test_all_that_was_sent_before_closing_arrives(self, directory: str) -> None:
        """Also when the peer only begins to read afterwards."""
        async with self.pair(directory) as (client, server):
            sent = 0
            with anyio.move_on_after(0.05):
                while True:
                    await client.send(sent.to_bytes(4, "little") + bytes(1000))
                    sent += 1
            with anyio.CancelScope():
                await client.aclose()
            got = [int.from_bytes(message[:4], "little") async for message in server]
            assert got[:sent] == list(range(sent))
            assert len(got) <= sent + 1  # the cancelled one was sent whole or not at all

    async def test_closed_while_receiving(self, directory: str) -> None:
        await self._closed_meanwhile(directory, lambda end: end.receive(), anyio.EndOfStream)

    async def test_closed_while_requesting(self, directory: str) -> None:
        desk = _Silent()
        async with self.serving(desk.handle, directory, grace=0.0) as (client, _):
            async with anyio.create_task_group() as group:
                group.start_soon(_expect, anyio.ClosedResourceError, client.request, b"x")
                await desk.asked.wait()
                await client.aclose()
        async with self.serving(desk.handle, directory, grace=0.0) as (client, server):
            async with anyio.create_task_group() as group:
                desk.asked = anyio.Event()
                group.start_soon(_expect, anyio.BrokenResourceError, client.request, b"x")
                await desk.asked.wait()
                await server.stop(0.0)

    async def test_closed_while_sending(self, directory: str) -> None:
        async def send(end: l5.Connection) -> None:
            while True:
                await end.send(bytes(self.segment_bytes))

        await self._closed_meanwhile(directory, send, anyio.BrokenResourceError)

    async def test_closed_while_sending_a_long_message(self, directory: str) -> None:
        async def send(end: l5.Connection) -> None:
            for _ in range(100):
                await end.send(bytes(self.max_message_bytes))

        await self._closed_meanwhile(directory, send, anyio.BrokenResourceError)

    async def _closed_meanwhile(
        self,
        directory: str,
        operation: Callable[[l5.Connection], Awaitable[object]],
        by_peer: type[Exception],
    ) -> None:
        for ours in (True, False):
            async with self.pair(directory) as (client, server):
                async with anyio.create_task_group() as group:
                    expected = anyio.ClosedResourceError if ours else by_peer
                    group.start_soon(_expect, expected, operation, client)
                    await settle()
                    await (client if ours else server).aclose()

    async def test_closing_in_a_cancelled_scope_closes(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            with anyio.move_on_after(0.05):
                while True:
                    await client.send(bytes(self.segment_bytes))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.aclose()
            with pytest.raises(anyio.ClosedResourceError):
                await client.send(b"x")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await server.aclose()

    async def test_send_eof(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            await client.send(b"question")
            await client.send_eof()
            assert await server.receive() == b"question"
            with pytest.raises(anyio.EndOfStream):
                await server.receive()
            for number in range(10):
                await server.send(b"answer %d" % number)
                assert await client.receive() == b"answer %d" % number
            await server.aclose()
            with pytest.raises(anyio.EndOfStream):
                await client.receive()

    async def test_nothing_can_be_sent_after_send_eof(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            await client.send_eof()
            with pytest.raises((l5.LocalProtocolError, anyio.ClosedResourceError)):
                await client.send(b"x")
            await client.send_eof()
            with pytest.raises(anyio.EndOfStream):
                await server.receive()

    async def test_a_byte_stream(self, directory: str) -> None:
        data = pattern(3 * self.segment_bytes + 7)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            there, here = client.as_byte_stream(), server.as_byte_stream()

            async def send() -> None:
                await there.send(data)
                await there.send(b"")
                await there.send_eof()

            group.start_soon(send)
            got = bytearray(await here.receive(1))
            assert len(got) == 1
            with pytest.raises(anyio.EndOfStream):
                while True:
                    part = await here.receive(1000)
                    assert 1 <= len(part) <= 1000
                    got += part
            assert bytes(got) == data

    async def test_statistics(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for _ in range(10):
                await client.send(b"x")
                await server.receive()
            assert client.statistics().transport == self.transport
            assert client.statistics().frames_sent >= 10
            assert server.statistics().frames_received >= 10
            assert client.statistics().in_flight == 0


class _Silent:
    """A handler that never answers."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def handle(self, request: bytes) -> bytes:
        self.asked.set()
        await anyio.sleep_forever()
        raise AssertionError


async def _expect(
    error: type[BaseException], operation: Callable[..., Awaitable[object]], *args: object
) -> None:
    with pytest.raises(error):
        await operation(*args)


def _operations(connection: l5.Connection) -> list[Callable[[], Awaitable[object]]]:
    async def lease() -> None:
        async with connection.lease():
            raise AssertionError("leased from a closed connection")

    async def reserve() -> None:
        async with connection.reserve(8):
            raise AssertionError("reserved on a closed connection")

    async def stream() -> None:
        async with connection.request_stream(b"x"):
            raise AssertionError("requested on a closed connection")

    return [
        connection.receive,
        lambda: connection.send(b"x"),
        lambda: connection.request(b"x"),
        lambda: connection.request(b"x", deadline=1.0),
        connection.send_eof,
        lease,
        reserve,
        stream,
    ]
