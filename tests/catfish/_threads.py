"""Served trees for tests of the client without an event loop: the server's runs in a thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
import attrs

import catfish_app.blocking
from catfish_app import RTree, RTreeClient, TreeServer, serve_tree
from tests.catfish._support import WAYS

MAPPED = ("shm from unix", "shm from tcp")
SOCKETS = ("unix", "tcp")


@attrs.frozen
class Loop:
    """A served tree, and the event loop that serves it."""

    url: str
    server: TreeServer
    portal: anyio.from_thread.BlockingPortal

    @contextmanager
    def asking(self, mode: str = "server") -> Generator[Callable[..., Any]]:
        """An async client, and a function that calls its methods by their names."""

        @asynccontextmanager
        async def connected() -> AsyncGenerator[RTreeClient]:
            async with await RTreeClient.connect(self.url, mode=mode) as client:  # type: ignore[arg-type]
                yield client

        with self.portal.wrap_async_context_manager(connected()) as client:

            def ask(name: str, *args: Any) -> Any:
                return self.portal.call(getattr(client, name), *args)

            yield ask


@contextmanager
def serving(
    folder: Path, tree: RTree, way: str = "shm from unix", **options: Any
) -> Generator[Loop]:
    """Serve a tree in a thread."""
    url, suffix, _ = WAYS[way]
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            serve_tree(tree, url.format(folder=folder), **options)
        ) as server,
    ):
        yield Loop(server.urls[0] + suffix, server, portal)


@contextmanager
def served(
    folder: Path, tree: RTree, way: str = "shm from unix", mode: str = "server", **options: Any
) -> Generator[tuple[catfish_app.blocking.RTreeClient, Loop]]:
    """A blocking client of a tree, and its server."""
    with serving(folder, tree, way, **options) as loop:
        with catfish_app.blocking.connect(loop.url, mode=mode) as client:  # type: ignore[arg-type]
            assert client.connection.transport == WAYS[way][2], client.connection.upgrade_report
            yield client, loop
