"""Remote memory of servers in threads (`l5.blocking.serve`), opened by clients on every loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

import l5
import l5.blocking
from l5.testing import RegionSuite


class OfThreads:
    """Looks like an `l5.Server`, as far as the suite needs one; what waits does so in a thread."""

    def __init__(self, server: l5.blocking.Server) -> None:
        self.urls = server.urls
        self.export, self.revoke = server.export, server.revoke
        self._server = server

    async def stop(self, grace: float = 0.0) -> None:
        await anyio.to_thread.run_sync(self._server.stop, grace)


def echo(request: bytes) -> bytes:
    return bytes(request)


class BlockingOwner(RegionSuite):
    @asynccontextmanager
    async def serving(
        self, handler: Any, directory: str, **options: Any
    ) -> AsyncGenerator[tuple[l5.Connection, l5.Server]]:
        """As in the harness; `handler` is for an event loop, and here an echo has its place."""
        server_only = {"grace", "connections_max", "regions_max"}
        shared = {name: value for name, value in options.items() if name not in server_only}
        server = l5.blocking.serve(echo, self.url(directory), **self._for_server(options))
        with anyio.fail_after(60.0):
            await anyio.to_thread.run_sync(server.__enter__)
            try:
                async with await self._connect(server.urls[0], shared) as client:
                    yield client, OfThreads(server)  # type: ignore[misc]
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(server.__exit__, None, None, None)


class TestUnix(BlockingOwner):
    transport = "unix"
    one_sided = False

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s?transports=unix"


@pytest.mark.shm
class TestSharedMemory(BlockingOwner):
    transport = "shm"
    one_sided = True

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s"


@pytest.mark.shm
class TestSharedMemoryFromTCP(BlockingOwner):
    transport = "shm"
    one_sided = True

    def url(self, directory: str) -> str:
        return "l5://127.0.0.1:0"
