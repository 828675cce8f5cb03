"""Conformance: leases and reservations, in place or not."""

from __future__ import annotations

import anyio
import pytest

import l5

from ._harness import Desk, Harness, leased, pattern, settle


class InPlaceTests(Harness):
    """`lease` and `reserve`; where memory is not shared they work on private copies."""

    async def test_leases_of_every_size(self, directory: str) -> None:
        sizes = [0, 1, 64, self.segment_bytes, self.segment_bytes + 1, self.max_message_bytes]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(_send_all, client, [pattern(size) for size in sizes])
            for size in sizes:
                async with leased(server) as view:
                    assert view.readonly
                    assert bytes(view) == pattern(size)

    async def test_leases_and_receives_take_turns(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            messages = [pattern(100, seed=n) for n in range(200)]
            group.start_soon(_send_all, client, messages)
            for number, message in enumerate(messages):
                if number % 3:
                    assert await server.receive() == message
                    continue
                async with leased(server) as view:
                    assert bytes(view) == message

    async def test_a_view_ends_with_its_block(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            await client.send(b"message")
            async with server.lease() as message:
                view = message.view
                assert bytes(view) == b"message"
                view.release()
            with pytest.raises(l5.LocalProtocolError):
                _ = message.view

    async def test_leaving_with_live_views(self, directory: str) -> None:
        """The memory is not given back before they die, and they stay valid until then."""
        async with self.pair(directory) as (client, server):
            await client.send(b"first")
            view = await _left_with_a_view(server)
            assert view is None or bytes(view) == b"first"
            async with anyio.create_task_group() as group:
                group.start_soon(_send_all, client, [pattern(1000, seed=n) for n in range(20)])
                for number in range(20):
                    assert await server.receive() == pattern(1000, seed=number)
            if view is not None:
                assert bytes(view) == b"first"
                view.release()
            await client.send(b"last")
            async with leased(server) as last:
                assert bytes(last) == b"last"

    async def test_a_held_lease_keeps_its_space(self, directory: str) -> None:
        """While one is held everything else arrives once, or waits: nothing is lost or doubled."""
        size = 1000
        count = 3 * self.ring_bytes // size
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            await client.send(b"held")
            async with leased(server) as view:
                group.start_soon(_send_all, client, [pattern(size, seed=n) for n in range(count)])
                got: list[bytes] = []
                with anyio.move_on_after(0.1):
                    while True:
                        got.append(await server.receive())
                assert got == [pattern(size, seed=n) for n in range(len(got))]
                assert bytes(view) == b"held"
            for number in range(len(got), count):
                assert await server.receive() == pattern(size, seed=number)

    async def test_a_lease_waits_and_ends_with_the_stream(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            got: list[bytes] = []

            async def lease() -> None:
                async with leased(server) as view:
                    got.append(bytes(view))

            group.start_soon(lease)
            await settle()
            await client.send(b"late")
            while not got:
                await settle()
            assert got == [b"late"]
            await client.aclose()
            with pytest.raises(anyio.EndOfStream):
                async with server.lease():
                    raise AssertionError("leased what was never sent")

    async def test_closing_while_a_lease_is_held(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            await client.send(b"held")
            async with leased(server) as view:
                await server.aclose()
                assert bytes(view) == b"held"

    # ---- reservations ----------------------------------------------------------------------------

    async def test_reserved_messages(self, directory: str) -> None:
        sizes = [0, 1, 64, self.segment_bytes, self.segment_bytes + 1, self.max_message_bytes]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:

            async def send() -> None:
                for size in sizes:
                    async with client.reserve(size) as slot:
                        with slot.view as view:
                            view[:] = pattern(size)
                        await slot.send()

            group.start_soon(send)
            for size in sizes:
                assert await server.receive() == pattern(size)

    async def test_less_than_was_reserved(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for used in (0, 1, 63, 64, 100, 4000):
                async with client.reserve(4000) as slot:
                    with slot.view as view:
                        view[:] = b"x" * 4000
                        view[:used] = pattern(used)
                    await slot.send(used)
                assert await server.receive() == pattern(used)
                await client.send(b"next")
                assert await server.receive() == b"next"
            with pytest.raises(ValueError, match="reserved"):
                async with client.reserve(10) as slot:
                    await slot.send(11)
            await client.send(b"sound")
            assert await server.receive() == b"sound"

    async def test_discarding(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            for size in (1, 100, self.segment_bytes, self.segment_bytes + 1):
                async with client.reserve(size) as slot:
                    with slot.view as view:
                        view[:] = b"\xff" * size
                await client.send(b"after %d" % size)
                assert await server.receive() == b"after %d" % size

    async def test_nothing_is_sent_twice(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            async with client.reserve(5) as slot:
                with slot.view as view:
                    view[:] = b"hello"
                await slot.send()
                with pytest.raises(l5.LocalProtocolError):
                    await slot.send()
                with pytest.raises(l5.LocalProtocolError):
                    _ = slot.view
            assert await server.receive() == b"hello"
            await client.send(b"next")
            assert await server.receive() == b"next"

    async def test_a_reservation_over_the_limit(self, directory: str) -> None:
        async with self.pair(directory) as (client, _):
            with pytest.raises(l5.MessageTooLarge):
                async with client.reserve(self.max_message_bytes + 1):
                    raise AssertionError("reserved more than can be sent")
            with pytest.raises(ValueError, match="-1"):
                async with client.reserve(-1):
                    raise AssertionError("reserved less than nothing")

    async def test_sending_with_live_views(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            async with client.reserve(5) as slot:
                view = slot.view
                view[:] = b"hello"
                if slot.in_place:
                    with pytest.raises(BufferError):
                        await slot.send()
                view.release()
                await slot.send()
            assert await server.receive() == b"hello"

    async def test_requests_in_place(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, _):
            for size in (1, 100, self.segment_bytes, self.segment_bytes + 1):
                request = (b"~" + pattern(size))[:size]
                async with client.reserve(size) as slot:
                    with slot.view as view:
                        view[:] = request
                    assert await slot.request() == request
            assert client.statistics().in_flight == 0

    async def test_others_wait_for_a_reservation(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            async with client.reserve(10) as slot:
                group.start_soon(client.send, b"other")
                await settle()
                with slot.view as view:
                    view[:] = b"0123456789"
                await slot.send()
            assert {await server.receive(), await server.receive()} == {b"other", b"0123456789"}

    async def test_credit_is_granted_while_a_reservation_is_open(self, directory: str) -> None:
        """What the connection has to say meanwhile is said when the reservation ends."""
        messages = [pattern(1000, seed=n) for n in range(4 * self.data_window_bytes // 1000)]
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(_send_all, client, messages)
            async with server.reserve(10):
                got: list[bytes] = []
                with anyio.move_on_after(0.1):
                    while True:
                        got.append(await server.receive())
            while len(got) < len(messages):
                got.append(await server.receive())
            assert got == messages

    async def test_sending_in_place_lets_others_run(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            got = 0

            async def receive() -> None:
                nonlocal got
                while True:
                    async with server.lease():
                        got += 1

            group.start_soon(receive)
            for _ in range(500):
                async with client.reserve(8) as slot:
                    await slot.send()
            assert got > 0
            group.cancel_scope.cancel()


async def _send_all(connection: l5.Connection, messages: list[bytes]) -> None:
    for message in messages:
        await connection.send(message)


async def _left_with_a_view(connection: l5.Connection) -> memoryview | None:
    """Leave a lease with a live view: `BufferError` where it is the peer's memory."""
    lease = connection.lease()
    async with lease as message:
        view = message.view
        if not message.in_place:
            return None
        with pytest.raises(BufferError):
            await lease.__aexit__(None, None, None)
    return view
