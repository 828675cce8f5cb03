"""Served trees for the tests: every transport, answered in C and in Python."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from catfish_app import RTree, RTreeClient, TreeServer, serve_tree

# Where the server listens, what is appended for the client, and what the connection becomes.
WAYS = {
    "shm from unix": ("l5+unix://{folder}/tree.sock", "", "shm"),
    "shm from tcp": ("l5://127.0.0.1:0", "", "shm"),
    "unix": ("l5+unix://{folder}/tree.sock", "?transports=unix", "unix"),
    "tcp": ("l5+tcp://127.0.0.1:0", "", "tcp"),
    "inproc": ("l5+inproc://tree", "", "inproc"),
}


@asynccontextmanager
async def served(
    folder: Path, tree: RTree, way: str = "shm from unix", **options: Any
) -> AsyncIterator[tuple[RTreeClient, TreeServer]]:
    """A client of a tree, and the server."""
    url, suffix, transport = WAYS[way]
    async with (
        serve_tree(tree, url.format(folder=folder), **options) as server,
        await RTreeClient.connect(server.urls[0] + suffix, mode="server") as client,
    ):
        assert client.connection.transport == transport, client.connection.upgrade_report
        yield client, server


def boxes(count: int, seed: int = 0, edge: float = 0.02) -> np.ndarray:
    """Random rectangles in the unit square."""
    random = np.random.default_rng(seed)
    low = random.random((count, 2))
    return np.hstack((low, low + random.random((count, 2)) * edge))


def meeting(rects: np.ndarray, query: Any) -> list[int]:
    """The rows that meet a query, by looking at each."""
    x0, y0, x1, y1 = query
    meets = (rects[:, 0] <= x1) & (rects[:, 2] >= x0) & (rects[:, 1] <= y1) & (rects[:, 3] >= y0)
    return np.flatnonzero(meets).tolist()


def sorted_ids(ids: np.ndarray) -> list[int]:
    return np.sort(ids).tolist()
