"""Heartbeats of servers in threads: each connection's client hears of the threads that serve it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING

from .._heartbeat import Beats

if TYPE_CHECKING:
    from collections.abc import Generator

    from .._wait import Hub


class ThreadBeats(Beats):
    """Of a connection that several threads serve: the part of their time in which handlers run.

    What one of them spends asleep, waiting for requests, says nothing of the others.
    """

    def __init__(self, hub: Hub, threads: int) -> None:
        super().__init__(hub)
        self._threads = threads
        self._guard = threading.Lock()
        self._running = 0
        self._handled_ns = 0
        self._counted_ns = monotonic_ns()

    @contextmanager
    def handling(self) -> Generator[None]:
        """(Without the hub's lock) count what a thread does in the block."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> tuple[int, int]:
        with self._guard:
            now = monotonic_ns()
            self._handled_ns += self._running * (now - self._counted_ns)
            self._counted_ns = now
            self._running += change
            return now, self._handled_ns

    def _now(self) -> tuple[int, int, int, int]:
        now, handled_ns = self._count(0)
        return now, 0, 0, now - handled_ns // self._threads
