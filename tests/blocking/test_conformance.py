"""The suite for transports, with blocking connections at one end or at both.

Messages and ends: both ends are blocking.  Requests: a blocking client of an async server, that is
also a test that they understand each other.  The loop that runs the test itself does not matter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import l5
import l5.blocking
from l5.testing import Pair, TransportSuite, pattern
from tests.blocking._adapter import (
    AsyncView,
    calls_can_be_cancelled,
    in_thread,
    tasks_are_the_callers,
)

__all__ = ["calls_can_be_cancelled", "tasks_are_the_callers"]


@pytest.fixture(scope="module", params=[pytest.param(("asyncio", {}), id="threads")])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param


class BlockingSuite(TransportSuite):
    # What these ask for is asked of an event loop, and there is none.
    test_strict_mode_yields_at_every_call = None  # type: ignore[assignment]
    test_strict_requests = None  # type: ignore[assignment]
    test_a_busy_sender_lets_others_run = None  # type: ignore[assignment]
    test_sending_in_place_lets_others_run = None  # type: ignore[assignment]
    test_an_endless_sender_can_be_cancelled = None  # type: ignore[assignment]

    async def test_after_the_peers_close(self, directory: str) -> None:
        """As in the suite, but the receiver is there: without a loop nobody grants for it."""

        async def send(end: l5.Connection, long: bytes) -> None:
            await end.send(b"last words")
            await end.send(long)
            await end.aclose()

        long = pattern(self.max_message_bytes // 8)
        async with self.pair(directory) as (client, server), anyio.create_task_group() as group:
            group.start_soon(send, server, long)
            assert await client.receive() == b"last words"
            assert await client.receive() == long
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

    @asynccontextmanager
    async def pair(self, directory: str, **options: Any) -> AsyncGenerator[Pair]:
        with anyio.fail_after(60.0):
            listener = await in_thread(
                l5.blocking.listen, self.url(directory), **self._for_server(options)
            )
            try:
                async with await self._connect(listener.urls[0], options) as client:
                    accepted = await in_thread(listener.accept)
                    async with AsyncView(accepted) as server:
                        assert server.transport == self.transport, server.upgrade_report
                        yield Pair(client, server)  # type: ignore[arg-type]
            finally:
                with anyio.CancelScope(shield=True):
                    await in_thread(listener.close)

    async def _connect(self, url: str, options: Mapping[str, Any]) -> l5.Connection:
        connection = await in_thread(
            l5.blocking.connect, self.client_url(url), **self._for_client(options)
        )
        if connection.transport != self.transport:
            connection.close()
            pytest.fail(f"{self.transport} was not used: {connection.upgrade_report}")
        return AsyncView(connection)  # type: ignore[return-value]


class TestInproc(BlockingSuite):
    transport = "inproc"

    def url(self, directory: str) -> str:
        return f"l5+inproc://{directory.rpartition('/')[2]}"


class TestUnix(BlockingSuite):
    transport = "unix"

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s?transports=unix"


class TestTCP(BlockingSuite):
    transport = "tcp"

    def url(self, directory: str) -> str:
        return "l5+tcp://127.0.0.1:0"


@pytest.mark.shm
class TestSharedMemory(BlockingSuite):
    transport = "shm"
    ring_bytes = 256 << 10
    segment_bytes = 64 << 10
    data_window_bytes = 256 << 10

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s"


@pytest.mark.shm
class TestSharedMemoryInTheSmallestRing(BlockingSuite):
    transport = "shm"
    client_options = {"spin_us": 0}
    server_options = {"spin_us": 0}

    def url(self, directory: str) -> str:
        return f"l5+shm://{directory}/s"
