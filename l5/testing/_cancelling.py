"""Conformance: cancellation at every await of every operation leaves a sound connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

import l5

from ._harness import Desk, Harness, leased, pattern
from ._interrupt import Interrupted, at_every_await

_Operation = Callable[[l5.Connection, int], Awaitable[object]]


class CancellationTests(Harness):
    """A counter picks the await; the connection must not notice."""

    # ---- messages --------------------------------------------------------------------------------

    async def test_send_at_every_await(self, directory: str) -> None:
        async def send(client: l5.Connection, number: int) -> None:
            await client.send(_numbered(number, 100))

        await self._all_or_nothing(directory, send, 100)

    async def test_a_long_send_at_every_await(self, directory: str) -> None:
        size = min(self.max_message_bytes, 6 * self.segment_bytes + 1)

        async def send(client: l5.Connection, number: int) -> None:
            await client.send(_numbered(number, size))

        await self._all_or_nothing(directory, send, size)

    async def test_a_reserved_send_at_every_await(self, directory: str) -> None:
        async def send(client: l5.Connection, number: int) -> None:
            async with client.reserve(100) as slot:
                with slot.view as view:
                    view[:] = _numbered(number, 100)
                await slot.send()

        await self._all_or_nothing(directory, send, 100)

    async def _all_or_nothing(self, directory: str, send: _Operation, size: int) -> None:
        """Into a clogged connection, so that sending waits; a reader takes its time."""
        async with self.pair(directory) as (client, server):
            sent: list[int] = []
            unsure: list[int] = []
            got: list[int] = []

            async def read() -> None:
                async for message in server:
                    number = int.from_bytes(message[:4], "little")
                    assert message == _numbered(number, len(message))
                    if number:
                        assert len(message) == size
                        got.append(number)
                    await anyio.sleep(0.0005)

            async def clog() -> None:
                with anyio.move_on_after(0.02):
                    while True:
                        await client.send(_numbered(0, self.segment_bytes // 2))

            async def check(number: int, outcome: Interrupted) -> None:
                (unsure if outcome.cancelled else sent).append(number)
                await clog()

            await clog()
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await at_every_await(lambda number: send(client, number), check)
                await client.send(_numbered(0, 10))
                await client.aclose()
            assert got == sorted(got)
            assert len(set(got)) == len(got)
            assert set(sent) <= set(got) <= set(sent) | set(unsure)

    async def test_receive_at_every_await(self, directory: str) -> None:
        async def receive(server: l5.Connection) -> bytes:
            return await server.receive()

        await self._none_is_lost(directory, receive, 10)

    async def test_a_long_receive_at_every_await(self, directory: str) -> None:
        async def receive(server: l5.Connection) -> bytes:
            return await server.receive()

        await self._none_is_lost(directory, receive, min(self.max_message_bytes, 100_000))

    async def test_a_lease_at_every_await(self, directory: str) -> None:
        async def lease(server: l5.Connection) -> bytes:
            async with leased(server) as view:
                return bytes(view)

        await self._none_is_lost(directory, lease, 10)

    async def _none_is_lost(
        self, directory: str, receive: Callable[[l5.Connection], Awaitable[bytes]], size: int
    ) -> None:
        count = 100
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            got: list[int] = []

            async def send() -> None:
                for number in range(count):
                    await client.send(_numbered(number, size))
                    if number % 5 == 0:
                        await anyio.sleep(0.0005)

            async def take(at: int) -> None:
                while len(got) < count:
                    message = await receive(server)
                    number = int.from_bytes(message[:4], "little")
                    assert message == _numbered(number, size)
                    got.append(number)

            async def check(at: int, outcome: Interrupted) -> None:
                pass

            group.start_soon(send)
            await at_every_await(take, check, most=10_000)
            assert got == list(range(count))

    async def test_receiving_all_at_once_with_cancellation(self, directory: str) -> None:
        """Cancelled when the event loop was due, with a message already in hand."""
        async with self.pair(directory) as (client, server):
            got: list[int] = []
            for start in range(0, 300, 100):
                for number in range(start, start + 100):
                    await client.send(_numbered(number, 10))
                while len(got) < start + 100:
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        for _ in range(100):
                            got.append(int.from_bytes((await server.receive())[:4], "little"))
                    if len(got) < start + 100:
                        got.append(int.from_bytes((await server.receive())[:4], "little"))
            assert got == list(range(300))

    # ---- requests --------------------------------------------------------------------------------

    async def test_request_at_every_await(self, directory: str) -> None:
        await self._undisturbed(directory, lambda client, n: client.request(b"~" + _text(n)))

    async def test_a_long_request_at_every_await(self, directory: str) -> None:
        size = min(self.max_message_bytes, 5 * self.segment_bytes + 3)
        await self._undisturbed(
            directory, lambda client, n: client.request(b"=" + _text(n) + bytes(size - 10))
        )

    async def test_a_long_answer_at_every_await(self, directory: str) -> None:
        size = min(self.max_message_bytes, 5 * self.segment_bytes + 3)
        await self._undisturbed(directory, lambda client, n: client.request(b"#%d" % size))

    async def test_a_request_with_deadline_at_every_await(self, directory: str) -> None:
        await self._undisturbed(
            directory, lambda client, n: client.request(b"~" + _text(n), deadline=30.0)
        )

    async def test_a_reserved_request_at_every_await(self, directory: str) -> None:
        async def request(client: l5.Connection, number: int) -> None:
            async with client.reserve(9) as slot:
                with slot.view as view:
                    view[:] = b"~" + _text(number)
                assert await slot.request() == b"~" + _text(number)

        await self._undisturbed(directory, request)

    async def test_a_stream_at_every_await(self, directory: str) -> None:
        size = min(self.max_message_bytes, 5 * self.segment_bytes + 3)

        async def stream(client: l5.Connection, number: int) -> None:
            async with client.request_stream(b"#%d" % size) as pieces:
                assert b"".join([piece async for piece in pieces]) == pattern(size)

        await self._undisturbed(directory, stream)

    async def _undisturbed(self, directory: str, operation: _Operation) -> None:
        """While others ask, too: each of them gets its own answer after every cancellation."""
        async with self.serving(Desk().handle, directory) as (client, _):
            tried = 0

            async def check(number: int, outcome: Interrupted) -> None:
                nonlocal tried
                tried += outcome.cancelled
                for command in (b"=", b"~"):
                    probe = command + b"probe" + _text(number)
                    assert await client.request(probe) == probe

            async def others() -> None:
                for number in range(1 << 30):
                    request = b"~other" + _text(number)
                    assert await client.request(request) == request
                    await anyio.sleep(0.0005)

            async with anyio.create_task_group() as group:
                group.start_soon(others)
                await at_every_await(lambda number: operation(client, number), check)
                group.cancel_scope.cancel()
            for number in range(3):
                probe = b"=after" + _text(number)
                assert await client.request(probe) == probe
            while client.statistics().in_flight:
                await client.request(b"~")
            assert client.statistics().late_answers <= tried + 1

    # ---- ends ------------------------------------------------------------------------------------

    async def test_connecting_at_every_await(self, directory: str) -> None:
        """The server serves on, and nothing is left behind (the test's leak check sees that)."""
        async with self.serving(Desk().handle, directory) as (client, server):
            connections: list[l5.Connection] = []

            async def connect(number: int) -> None:
                connections.append(await self._connect(server.urls[0], {}))

            async def check(number: int, outcome: Interrupted) -> None:
                assert await client.request(b"=probe") == b"=probe"

            try:
                await at_every_await(connect, check)
                for connection in connections:
                    assert await connection.request(b"=sound") == b"=sound"
            finally:
                for connection in connections:
                    await connection.aclose()

    async def test_closing_at_every_await(self, directory: str) -> None:
        for at in (1, 2, 3):
            async with self.pair(directory) as (client, server):
                with anyio.move_on_after(0.02):
                    while True:
                        await client.send(bytes(self.segment_bytes))

                async def close(number: int, end: l5.Connection = client) -> None:
                    await end.aclose()

                async def check(number: int, outcome: Interrupted) -> None:
                    pass

                with suppress(AssertionError):
                    await at_every_await(close, check, most=at)
                async with anyio.create_task_group() as group:
                    group.start_soon(_drain, server)


async def _drain(connection: l5.Connection) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, l5.RemoteProtocolError):
        while True:
            await connection.receive()


def _numbered(number: int, size: int) -> bytes:
    return number.to_bytes(4, "little") + bytes(size - 4)


def _text(number: int) -> bytes:
    return b"%08d" % number
