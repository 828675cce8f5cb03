"""Conformance: messages, their order and back-pressure, and how a connection ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

import l5

from ._harness import Harness, Pair, pattern, settle


class MessageTests(Harness):
    """`send` and `receive`."""

    def sizes(self) -> list[int]:
        """Every size at which something changes."""
        edges = [64, self.segment_bytes, self.ring_bytes // 2, self.ring_bytes]
        around = [edge + delta for edge in edges for delta in (-1, 0, 1)]
        inner = [0, 1, 24, 40, *around, self.max_message_bytes - 1, self.max_message_bytes]
        return sorted({size for size in inner if size <= self.max_message_bytes})

    async def test_names_its_transport(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for end in (client, server):
                assert end.transport == self.transport
                assert end.upgrade_report.transport == self.transport
                assert end.max_message_bytes == self.max_message_bytes

    async def test_messages_of_every_size(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for sender, receiver in ((client, server), (server, client)):
                async with anyio.create_task_group() as group:
                    group.start_soon(_send_all, sender, [pattern(n) for n in self.sizes()])
                    for size in self.sizes():
                        message = await receiver.receive()
                        assert type(message) is bytes
                        assert message == pattern(size)

    async def test_a_message_over_the_limit_is_not_sent(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for sender, receiver in ((client, server), (server, client)):
                with pytest.raises(l5.MessageTooLarge) as caught:
                    await sender.send(bytes(self.max_message_bytes + 1))
                assert caught.value.limit_bytes == self.max_message_bytes
                await sender.send(b"next")
                assert await receiver.receive() == b"next"

    async def test_any_buffer_can_be_sent(self, directory: str) -> None:
        import array

        async with self.pair(directory) as (client, server):
            numbers = array.array("i", [1, 2, 3])
            for item in (bytearray(b"ab"), memoryview(b"abcd")[1:3], numbers):
                await client.send(item)
                assert await server.receive() == bytes(memoryview(item))
            await client.send([b"one", bytearray(b"two"), memoryview(b"three")])
            assert await server.receive() == b"onetwothree"
            with pytest.raises((TypeError, BufferError)):
                await client.send(memoryview(b"abcdef")[::2])
            with pytest.raises(TypeError):
                await client.send("text")  # type: ignore[arg-type]
            await client.send(b"still sound")
            assert await server.receive() == b"still sound"

    async def test_order(self, directory: str) -> None:
        sizes = [0, 3, self.segment_bytes + 5, 1, 70, 2 * self.segment_bytes, 64]
        messages = [n.to_bytes(4, "little") + pattern(sizes[n % len(sizes)]) for n in range(300)]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(_send_all, client, messages)
            for message in messages:
                assert await server.receive() == message

    async def test_both_directions_at_once(self, directory: str) -> None:
        messages = [pattern(size, seed=n) for n, size in enumerate(self.sizes() * 2)]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            for sender, receiver in ((client, server), (server, client)):
                group.start_soon(_send_all, sender, messages)
                group.start_soon(_expect_all, receiver, messages)

    async def test_many_senders(self, directory: str) -> None:
        size = self.segment_bytes + 1
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            for number in range(20):
                own = [bytes([number]) + pattern(n, seed=number) for n in (0, 10, size, 5)]
                group.start_soon(_send_all, client, own)
            seen: dict[int, list[int]] = {number: [] for number in range(20)}
            for _ in range(80):
                message = await server.receive()
                assert message[1:] == pattern(len(message) - 1, seed=message[0])
                seen[message[0]].append(len(message) - 1)
            assert all(sizes == [0, 10, size, 5] for sizes in seen.values())

    async def test_iteration_ends_with_the_peer(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for number in range(5):
                await client.send(b"%d" % number)
            await client.aclose()
            assert [message async for message in server] == [b"0", b"1", b"2", b"3", b"4"]

    # ---- back-pressure ---------------------------------------------------------------------------

    async def test_a_clogged_peer_makes_the_sender_wait(self, directory: str) -> None:
        size = KIB_AND_SOME
        most = (self.data_window_bytes + 2 * self.ring_bytes + self.buffered_bytes) // size
        count = 0

        async def send(connection: l5.Connection) -> None:
            nonlocal count
            for number in range(2 * most):
                await connection.send(pattern(size, seed=number))
                count = number + 1

        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(send, client)
            last = -1
            while count != last:
                last = count
                await settle(20)
            assert 0 < count <= self.data_window_bytes // size + 1
            for number in range(2 * self.data_window_bytes // size):
                assert await server.receive() == pattern(size, seed=number)
            group.cancel_scope.cancel()

    async def test_clogged_by_long_messages(self, directory: str) -> None:
        messages = [pattern(self.max_message_bytes, seed=n) for n in range(4)]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            for message in messages[1:]:
                group.start_soon(client.send, message)
            await settle(20)
            got = [await server.receive() for _ in messages[1:]]
            assert sorted(got) == sorted(messages[1:])

    async def test_one_receive_at_a_time(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            got: list[bytes] = []

            async def receive() -> None:
                got.append(await server.receive())

            group.start_soon(receive)
            await settle()
            with pytest.raises(anyio.BusyResourceError):
                await server.receive()
            with pytest.raises(anyio.BusyResourceError):
                async with server.lease():
                    raise AssertionError("a second receiver was let in")
            await client.send(b"for the first")
            while not got:
                await settle()
            assert got == [b"for the first"]
            await client.send(b"second")
            assert await server.receive() == b"second"

    async def test_a_busy_sender_lets_others_run(self, directory: str) -> None:
        """Neither sending nor receiving what is there keeps the event loop for itself."""
        async with self.pair(directory) as (client, server):
            ran = 0

            async def count() -> None:
                nonlocal ran
                while True:
                    await anyio.lowlevel.checkpoint()
                    ran += 1

            async def drain() -> None:
                async for _ in server:
                    pass

            async with anyio.create_task_group() as group:
                group.start_soon(count)
                group.start_soon(drain)
                for _ in range(2000):
                    await client.send(b"x" * 100)
                assert ran >= 2000 // 64 // 2
                group.cancel_scope.cancel()

    async def test_an_endless_sender_can_be_cancelled(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:

            async def send_forever() -> None:
                while True:
                    await client.send(b"x")

            async def receive_forever() -> None:
                while True:
                    await server.receive()

            group.start_soon(send_forever)
            group.start_soon(receive_forever)
            await settle()
            group.cancel_scope.cancel()

    async def test_strict_mode_yields_at_every_call(self, directory: str) -> None:
        async with self.pair(directory, strict=True) as (client, server):
            with anyio.CancelScope() as scope:
                scope.cancel()
                for _ in range(2):
                    await client.send(b"x")
                raise AssertionError("two sends went through a cancelled scope")
            while True:
                with anyio.move_on_after(0.05):
                    await server.receive()
                    continue
                break


KIB_AND_SOME = 1100


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
            with anyio.move_on_after(0.2):
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


async def _send_all(connection: l5.Connection, messages: list[bytes]) -> None:
    for message in messages:
        await connection.send(message)


async def _expect_all(connection: l5.Connection, messages: list[bytes]) -> None:
    for message in messages:
        assert await connection.receive() == message


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


__all__ = ["EndTests", "MessageTests", "Pair"]
