"""Conformance: servers, from the first request to the last one that is let finish."""

from __future__ import annotations

import anyio
import pytest

import l5

from ._harness import Desk, Harness, settle, the_only


class ServerTests(Harness):
    """`serve`."""

    async def test_plain_data_to_a_request_server_breaks(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (client, server):
            other = await self._connect(server.urls[0], {})
            async with other:
                await client.send(b"plain")
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await client.receive()
                assert await other.request(b"=sound") == b"=sound"

    async def test_requests_to_who_does_not_serve(self, directory: str) -> None:
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(_take_one, server)
            with pytest.raises(l5.RequestFailed) as caught:
                await client.request(b"anybody?")
            assert caught.value.remote_type == "NotServed"
            await client.send(b"done")

    async def test_two_connections_are_served_fairly(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory) as (first, server):
            second = await self._connect(server.urls[0], {})
            counts = [0, 0]
            shares: list[int] = []
            async with second, anyio.create_task_group() as group:

                async def ask(index: int, connection: l5.Connection) -> None:
                    while True:
                        await connection.request(b"=x")
                        counts[index] += 1

                group.start_soon(ask, 0, first)
                group.start_soon(ask, 1, second)
                # A slice of time may have been one's alone: that evens out, hunger does not.
                while sum(counts) < 300 or (
                    min(counts) < max(counts) // 10 and max(counts) < 30_000
                ):
                    await anyio.sleep(0.001)
                shares[:] = sorted(counts)
                group.cancel_scope.cancel()
            assert shares[0] >= shares[1] // 10

    async def test_draining_lets_running_requests_finish(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, server):
            async with anyio.create_task_group() as group:
                group.start_soon(_ask, client, b"w")
                await desk.until(waiting=1)
                group.start_soon(server.stop, 30.0)
                await settle()
                with pytest.raises(l5.RequestFailed) as caught:
                    await client.request(b"=late")
                assert caught.value.remote_type == "ServerClosing"
                with pytest.raises(l5.ConnectError):
                    await self._connect(server.urls[0], {})
                desk.gate.set()

    async def test_the_grace_period_ends(self, directory: str) -> None:
        desk = Desk()
        async with self.serving(desk.handle, directory) as (client, server):
            with the_only(anyio.BrokenResourceError):
                async with anyio.create_task_group() as group:
                    group.start_soon(client.request, b"w")
                    await desk.until(waiting=1)
                    await server.stop(0.01)
            await desk.until(cancelled=1)

    async def test_connections_over_the_limit(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory, connections_max=2) as (client, server):
            async with await self._connect(server.urls[0], {}):
                with pytest.raises(l5.ConnectError, match="connections"):
                    await self._connect(server.urls[0], {})
                assert await client.request(b"=sound") == b"=sound"

    async def test_strict_requests(self, directory: str) -> None:
        async with self.serving(Desk().handle, directory, strict=True) as (client, _):
            for _ in range(5):
                assert await client.request(b"=x") == b"=x"
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.request(b"=x")
                raise AssertionError("a request went through a cancelled scope")
            assert await client.request(b"=sound") == b"=sound"


async def _take_one(connection: l5.Connection) -> None:
    assert await connection.receive() == b"done"


async def _ask(client: l5.Connection, request: bytes) -> None:
    assert await client.request(request) == request
