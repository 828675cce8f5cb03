"""What a served tree does, second by second: rates, latencies, who searched.

The monitor is a client: it reads the server's counters, which costs the server nothing, and sends a
few searches of its own to see how long they take and which path serves them.
"""

from __future__ import annotations

import time
from collections import deque
from time import perf_counter_ns
from typing import Any

import attrs
import numpy as np

from catfish_app._client import RTreeClient
from catfish_app._measure import Window, make_windows
from catfish_app._wire import ServiceStats

PROBES = 16
"""Searches of its own a sample."""
ANCHORS_WANTED = 64
HISTORY = 240
_NOT_WORK = ("stats", "bounds", "level_rects", "refused")


@attrs.frozen
class Sample:
    """A moment of a server, and what happened since the one before."""

    at_s: float
    """Seconds since 1970."""
    requests_per_s: dict[str, float]
    """By operation; the monitor's own are in it."""
    paths: dict[str, int]
    """How many of the monitor's searches each path served: server, client."""
    p50_us: float | None
    max_us: float | None
    """Of the monitor's searches; None when the tree is empty."""
    busy_share: float
    entries: int
    height: int
    free_nodes: int
    capacity_nodes: int
    connections: int
    workers: int
    uptime_s: float

    @property
    def rate(self) -> float:
        """Requests a second that were work."""
        return sum(n for name, n in self.requests_per_s.items() if name not in _NOT_WORK)

    def as_dict(self) -> dict[str, Any]:
        """Give the figures as what JSON can hold."""
        return attrs.asdict(self) | {"rate": self.rate}


class Monitor:
    """Takes samples of a server through a client, which may be used for more."""

    def __init__(self, client: RTreeClient, *, probes: int = PROBES) -> None:
        self.client = client
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self._probes = probes
        self._windows: list[Window] = []
        self._next = 0
        self._before: ServiceStats | None = None
        self._before_ns = 0

    async def start(self) -> None:
        """Read the counters from which the first sample counts."""
        self._before, self._before_ns = await self.client.stats(walk=False), perf_counter_ns()

    async def sample(self) -> Sample:
        """Look once: what happened since the sample before."""
        if self._before is None:
            await self.start()
        before = self._before
        assert before is not None
        paths, latencies = await self._probe()
        now = await self.client.stats(walk=False)
        now_ns = perf_counter_ns()
        seconds = max(1e-9, (now_ns - self._before_ns) / 1e9)
        self._before, self._before_ns = now, now_ns
        p50, top = np.percentile(latencies, [50, 100]).tolist() if latencies else (None, None)
        sample = Sample(
            at_s=time.time(),
            requests_per_s=_rates(before, now, seconds),
            paths=paths,
            p50_us=p50,
            max_us=top,
            busy_share=now.busy_share,
            entries=now.tree.entries,
            height=now.tree.height,
            free_nodes=now.tree.free_nodes,
            capacity_nodes=now.tree.capacity_nodes,
            connections=now.connections,
            workers=now.workers,
            uptime_s=now.uptime_s,
        )
        self.history.append(sample)
        return sample

    async def _probe(self) -> tuple[dict[str, int], list[float]]:
        paths: dict[str, int] = {}
        latencies: list[float] = []
        if self._probes and (self._windows or await self._choose_windows()):
            for _ in range(self._probes):
                window = self._windows[self._next % len(self._windows)]
                self._next += 1
                began = perf_counter_ns()
                await self.client.search(window)
                latencies.append((perf_counter_ns() - began) / 1e3)
                path = path_of(self.client)
                paths[path] = paths.get(path, 0) + 1
        return paths, latencies

    async def _choose_windows(self) -> bool:
        """Choose windows where data is, from the highest level that has enough nodes to tell."""
        bounds = await self.client.bounds()
        if bounds is None:
            return False
        height = (await self.client.stats(walk=False)).tree.height
        anchors = np.empty((0, 4))
        for level in reversed(range(height)):
            anchors = await self.client.level_rects(level)
            if len(anchors) >= ANCHORS_WANTED:
                break
        self._windows = make_windows(bounds, anchors, 1024, seed=1)
        return True


def path_of(client: RTreeClient) -> str:
    """Name the path that served the client's last search: ``server`` or ``client``."""
    report = getattr(client, "last_search", None)  # of a client that may search by itself
    return "server" if report is None else str(report.path.value)


def mode_of(client: RTreeClient) -> str:
    """Name how the client chooses the path: ``server``, ``client`` or ``adaptive``."""
    return str(getattr(client, "mode", "server"))


def _rates(before: ServiceStats, now: ServiceStats, seconds: float) -> dict[str, float]:
    """Return requests a second by operation, of those that were used at all."""
    return {
        name: max(0, count - before.requests.get(name, 0)) / seconds
        for name, count in now.requests.items()
    }
