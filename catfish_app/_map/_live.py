"""One monitor for all pages that watch: a sample a second goes to each of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectSendStream

import l5
from catfish_app._client import RTreeClient
from catfish_app._monitor import Monitor, Sample

logger = logging.getLogger("catfish")

INTERVAL_S = 1.0
WATCHERS_MAX = 32
BEHIND_MAX = 8
"""A page that takes nothing misses samples after so many."""


class Live:
    """Samples a server while anybody watches, and for the history otherwise too."""

    def __init__(self, client: RTreeClient, interval_s: float = INTERVAL_S) -> None:
        self.client = client
        self._monitor = Monitor(client)
        self._interval_s = interval_s
        self._watchers: set[MemoryObjectSendStream[Sample]] = set()

    @property
    def history(self) -> Sequence[Sample]:
        """The last samples, oldest first."""
        return tuple(self._monitor.history)

    def admits(self) -> bool:
        """Tell whether one more may watch."""
        return len(self._watchers) < WATCHERS_MAX

    async def run(self) -> None:
        """Take samples until cancelled; ends when the server cannot be asked any more."""
        try:
            while True:
                await anyio.sleep(self._interval_s)
                sample = await self._monitor.sample()
                for watcher in tuple(self._watchers):
                    try:
                        watcher.send_nowait(sample)
                    except anyio.WouldBlock:
                        pass  # a page that sleeps: it draws what it gets when it is awake
                    except anyio.BrokenResourceError:
                        self._watchers.discard(watcher)
        except (l5.L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.error("the map shows no more samples: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        """End what the watchers receive."""
        for watcher in tuple(self._watchers):
            watcher.close()

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Sample]]:
        """Receive samples from now on; the iteration ends when the server does."""
        send, receive = anyio.create_memory_object_stream[Sample](BEHIND_MAX)
        self._watchers.add(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(send)
