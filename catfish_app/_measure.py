"""Random windows, and what searching them one after the other costs a client."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import attrs
import numpy as np

from catfish_app._client import RTreeClient
from catfish_app._rtree import Floats

Window = tuple[float, float, float, float]

EDGE_MIN = 0.0001
EDGE_MAX = 0.003
"""Edges of windows as shares of the extent, log-uniform between these."""
UNIFORM_SHARE = 0.25
_CHECK_TIME_EVERY = 64


def make_windows(
    bounds: Sequence[float],
    anchors: Floats,
    count: int,
    seed: int,
    edges: tuple[float, float] = (EDGE_MIN, EDGE_MAX),
) -> list[Window]:
    """Return windows of many sizes: three in four around an anchor, the others anywhere.

    Anchors are rectangles where data is; bounds is the extent of all.
    """
    random = np.random.default_rng(seed)
    low, extent = np.array(bounds[:2]), np.array(bounds[2:]) - np.array(bounds[:2])
    centres = low + random.random((count, 2)) * extent
    if len(anchors):
        chosen = anchors[random.integers(0, len(anchors), count)]
        around = chosen[:, :2] + random.random((count, 2)) * (chosen[:, 2:] - chosen[:, :2])
        centres = np.where(random.random((count, 1)) < UNIFORM_SHARE, centres, around)
    shares = np.exp(random.uniform(np.log(edges[0]), np.log(edges[1]), (count, 1)))
    halves = shares * extent.max() / 2 * random.uniform(0.5, 1.0, (count, 2))
    return [
        (row[0], row[1], row[2], row[3])
        for row in np.hstack((centres - halves, centres + halves)).tolist()
    ]


@attrs.frozen
class Measured:
    """One client's run."""

    searches: int
    seconds: float
    results: int
    p50_us: float
    p99_us: float
    max_us: float

    def as_dict(self) -> dict[str, Any]:
        """Give the figures as what JSON can hold."""
        return {
            "searches": self.searches,
            "seconds": self.seconds,
            "searches_per_s": self.searches / self.seconds,
            "mean_results": self.results / self.searches,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "max_us": self.max_us,
        }


async def measure(tree: RTreeClient, windows: list[Window], seconds: float) -> Measured:
    """Search the windows round and round, one at a time, for some seconds (at least 64 times)."""
    search = tree.search
    for window in windows[:200]:
        await search(window)  # warms caches, and wakes the server
    latencies: list[int] = []
    results, position, count = 0, 0, len(windows)
    began = now = perf_counter_ns()
    end = began + int(seconds * 1e9)
    while now < end or not latencies:
        for _ in range(_CHECK_TIME_EVERY):
            before = perf_counter_ns()
            ids = await search(windows[position])
            now = perf_counter_ns()
            latencies.append(now - before)
            results += len(ids)
            position += 1
            if position == count:
                position = 0
    p50, p99, top = np.percentile(np.array(latencies), [50, 99, 100]) / 1e3
    return Measured(
        len(latencies), (now - began) / 1e9, results, float(p50), float(p99), float(top)
    )
