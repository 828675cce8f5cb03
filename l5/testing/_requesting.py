"""Conformance: requests, their deadlines, cancellation and streamed answers."""

from __future__ import annotations

import random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5

from ._harness import Desk, Harness, pattern, settle, the_only


class RequestTests(Harness):
    """`request` and `serve`."""

    def request_sizes(self) -> list[int]:
        """Every size at which something changes."""
        edges = [64, self.segment_bytes, self.ring_bytes]
        around = [edge + delta for edge in edges for delta in (-1, 0, 1)]
        sizes = [1, 40, *around, self.max_message_bytes - 1, self.max_message_bytes]
        return [size for size in sizes if size <= self.max_message_bytes]

    async def test_requests_of_every_size(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            for size in self.request_sizes():
                request = (b"=" + pattern(size))[:size]
                assert await client.request(request) == request
            assert await client.request(b"") == b""

    async def test_requests_over_the_limit_are_not_sent(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            too_long = b"=" + bytes(self.max_message_bytes)
            with pytest.raises(l5.MessageTooLarge):
                await client.request(too_long)
            with pytest.raises(l5.MessageTooLarge):
                await client.request(too_long, deadline=10.0)
            with pytest.raises(l5.RequestFailed) as caught:
                await client.request(b"#%d" % len(too_long))
            assert caught.value.remote_type == "MessageTooLarge"
            assert await client.request(b"=sound") == b"=sound"

    async def test_every_size_with_a_deadline(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            for size in self.request_sizes():
                request = (b"=" + pattern(size))[:size]
                assert await client.request(request, deadline=30.0) == request

    async def test_a_hundred_tasks_at_once(self, directory: str) -> None:
        """Each gets its own answer, whatever the order in which they come."""
        async with self.serving(_shuffled, directory) as (client, _):

            async def ask(number: int) -> None:
                size = self.segment_bytes * 3 // 2 if number % 25 == 0 else number
                request = b"%d:" % number + pattern(size, seed=number)
                for _ in range(3):
                    assert await client.request(request) == request[::-1]

            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(ask, number)
            assert client.statistics().in_flight == 0

    async def test_more_tasks_than_may_be_in_flight(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory, in_flight_max=4) as (client, _):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(client.request, b"w%d" % number)
                await desk.until(waiting=4)
                await settle()
                assert desk.waiting == 4
                assert client.statistics().in_flight == 4
                desk.gate.set()
            assert client.statistics().in_flight == 0

    async def test_failures_carry_type_and_message(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, server):
            with pytest.raises(l5.RequestFailed) as caught:
                await client.request(b"!words")
            assert caught.value.remote_type == "ValueError"
            assert caught.value.remote_message == "no words"
            with pytest.raises(l5.RequestFailed) as caught:
                await client.request(b"?")
            assert caught.value.remote_type == "TypeError"
            assert await client.request(b"=sound") == b"=sound"
            assert server.statistics().failed == 2

    @pytest.mark.parametrize("kind", ["plain", "async", "slow"])
    @pytest.mark.parametrize("context", [False, True])
    async def test_every_kind_of_handler(self, directory: str, kind: str, context: bool) -> None:
        seen: list[l5.RequestContext] = []
        async with self.serving(_handlers(kind, context, seen), directory) as (client, _):
            for size in (3, self.segment_bytes + 1):
                assert await client.request(pattern(size)) == pattern(size)
        assert len(seen) == (2 if context else 0)
        for entry in seen:
            assert entry.transport == self.transport
            assert entry.deadline is None

    async def test_handlers_run_at_once(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, server):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(client.request, b"w")
                await desk.until(waiting=50)
                assert server.statistics().running == 50
                assert await client.request(b"=quick") == b"=quick"
                assert await client.request(b"~quick") == b"~quick"
                desk.gate.set()
            while server.statistics().running:
                await settle(1)

    async def test_small_requests_pass_a_long_answer(self, directory: str) -> None:
        """A slow reader of one answer does not hold up the others."""
        async with self.serving(Desk().handle, directory) as (client, _):
            async with client.request_stream(b"#%d" % self.max_message_bytes) as pieces:
                first = await anext(aiter(pieces))
                for number in range(20):
                    assert await client.request(b"=%d" % number) == b"=%d" % number
                rest = [piece async for piece in pieces]
            assert b"".join([first, *rest]) == pattern(self.max_message_bytes)

    async def test_small_requests_pass_a_long_request(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            long = b"=" + pattern(self.max_message_bytes - 1)

            async def ask() -> None:
                assert await client.request(long) == long

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(ask)
                for number in range(50):
                    assert await client.request(b"~%d" % number) == b"~%d" % number

    async def test_a_small_request_is_not_overtaken_by_all_of_a_long_one(
        self, directory: str
    ) -> None:
        """Who waits for room keeps his place: one segment of each other goes first, not all."""
        count = 8
        long = b"=" + pattern(self.max_message_bytes - 1)
        async with self.serving(Desk().handle, directory) as (client, _):
            small, answered = 0, 0

            async def ask_long() -> None:
                nonlocal answered
                for _ in range(count):
                    assert await client.request(long) == long
                answered += 1

            async def ask_small() -> None:
                nonlocal small
                while answered < 2:
                    assert await client.request(b"~small") == b"~small"
                    small += 1

            async with anyio.create_task_group() as group:
                group.start_soon(ask_long)
                group.start_soon(ask_long)
                group.start_soon(ask_small)
            assert small >= count

    # ---- deadlines and cancellation --------------------------------------------------------------

    async def test_a_deadline_reaches_the_handler_and_ends_it(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, _):
            deadline = 0.025
            while not desk.deadlines:  # on a busy machine it may pass before the handler begins
                deadline *= 2
                with pytest.raises(l5.DeadlineExceeded):
                    await client.request(b"w", deadline=deadline)
                await settle()
            left, begun = desk.deadlines[0], len(desk.deadlines)
            assert left is not None and 0 < left <= deadline
            await desk.until(cancelled=begun, waiting=0)
            assert await client.request(b"=sound", deadline=30.0) == b"=sound"
            assert desk.deadlines[-1] is not None and desk.deadlines[-1] > 1.0
            for passed in (0.0, -1.0):
                with pytest.raises(l5.DeadlineExceeded):
                    await client.request(b"=", deadline=passed)
            await _until_none_in_flight(client)

    async def test_a_deadline_of_a_stream(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, _):
            deadline = 0.025
            while not desk.deadlines:
                deadline *= 2
                with pytest.raises(l5.DeadlineExceeded):
                    async with client.request_stream(b"w", deadline=deadline) as pieces:
                        async for _ in pieces:
                            raise AssertionError("an answer came from a handler that waits")
                await settle()
            await desk.until(cancelled=len(desk.deadlines), waiting=0)
            await _until_none_in_flight(client)
            assert await client.request(b"=sound") == b"=sound"

    async def test_an_endless_deadline_is_none(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            assert await client.request(b"=x", deadline=float("inf")) == b"=x"

    async def test_cancelling_reaches_the_handler(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, server):
            async with anyio.create_task_group() as others:
                others.start_soon(client.request, b"w")
                await desk.until(waiting=1)
                async with anyio.create_task_group() as group:
                    group.start_soon(client.request, b"w")
                    await desk.until(waiting=2)
                    group.cancel_scope.cancel()
                await desk.until(waiting=1, cancelled=1)
                assert await client.request(b"=sound") == b"=sound"
                desk.gate.set()
            await _until_none_in_flight(client)
            assert client.statistics().late_answers == 1
            assert server.statistics().cancelled == 1

    async def test_a_cancelled_handler_does_not_take_others_along(self, directory: str) -> None:
        """One that ends in spite of its cancellation leaves nothing of it to the next request."""

        async def stubborn(request: bytes) -> bytes:
            if request == b"stubborn":
                started.set()
                with anyio.CancelScope(shield=True):
                    await gate.wait()
            else:
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            return request

        started, gate = anyio.Event(), anyio.Event()
        async with self.serving(stubborn, directory) as (client, _):
            async with anyio.create_task_group() as group:
                group.start_soon(client.request, b"stubborn")
                await started.wait()
                group.cancel_scope.cancel()
            await settle()
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(self._ask, client, b"%d" % number)
                gate.set()
            for number in range(20):
                await self._ask(client, b"%d" % number)
            await _until_none_in_flight(client)
            assert client.statistics().late_answers == 1

    @staticmethod
    async def _ask(client: l5.Connection, request: bytes) -> None:
        assert await client.request(request) == request

    async def test_the_server_sees_the_end_of_a_client(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, server):
            with the_only(anyio.ClosedResourceError):
                async with anyio.create_task_group() as group:
                    group.start_soon(client.request, b"w")
                    await desk.until(waiting=1)
                    await client.aclose()
            await desk.until(waiting=0, cancelled=1)
            while server.statistics().connections:
                await settle()

    # ---- streams ---------------------------------------------------------------------------------

    async def test_a_streamed_answer(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            for size in (0, 10, self.segment_bytes, self.max_message_bytes):
                async with client.request_stream(b"#%d" % size) as pieces:
                    got = [piece async for piece in pieces]
                assert b"".join(got) == pattern(size)
                assert all(len(piece) <= self.segment_bytes for piece in got)
            with pytest.raises(l5.RequestFailed):
                async with client.request_stream(b"!x") as pieces:
                    async for _ in pieces:
                        raise AssertionError("a failed request gave a piece")

    async def test_a_slow_reader_of_a_stream_is_waited_for(self, directory: str) -> None:
        size = self.max_message_bytes
        async with self.serving(Desk().handle, directory) as (client, server):
            async with client.request_stream(b"#%d" % size) as pieces:
                got = [await anext(aiter(pieces))]
                await settle(20)
                assert server.statistics().requests == 0  # its answer is still being sent
                got += [piece async for piece in pieces]
            assert b"".join(got) == pattern(size)

    async def test_a_stream_left_early(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            for _ in range(5):
                async with client.request_stream(b"#%d" % self.max_message_bytes) as pieces:
                    assert await anext(aiter(pieces))
                assert await client.request(b"=sound") == b"=sound"
            await _until_none_in_flight(client)
            assert client.statistics().late_answers == 5


async def _shuffled(request: bytes) -> bytes:
    for _ in range(random.randrange(4)):
        await anyio.lowlevel.checkpoint()
    return request[::-1]


async def _until_none_in_flight(connection: l5.Connection) -> None:
    while connection.statistics().in_flight:
        await connection.request(b"=anything")
        await settle()


def _handlers(kind: str, context: bool, seen: list[l5.RequestContext]) -> Any:
    def plain(request: bytes) -> bytearray:
        return bytearray(request)

    def plain_with(request: bytes, context: l5.RequestContext) -> bytes:
        seen.append(context)
        return request

    async def quick(request: bytes) -> memoryview:
        return memoryview(request)

    async def quick_with(request: bytes, context: l5.RequestContext) -> bytes:
        seen.append(context)
        return request

    async def slow(request: bytes) -> bytes:
        await anyio.sleep(0.001)
        return request

    async def slow_with(request: bytes, context: l5.RequestContext) -> bytes:
        seen.append(context)
        await anyio.sleep(0.001)
        return request

    return {
        ("plain", False): plain,
        ("plain", True): plain_with,
        ("async", False): quick,
        ("async", True): quick_with,
        ("slow", False): slow,
        ("slow", True): slow_with,
    }[kind, context]
