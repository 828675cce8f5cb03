"""One of the demo's client processes: connect, wait for the word, search, check a sample, report.

Usage: python -m catfish_app._demo_client URL SECONDS SEED. Prints one line of JSON when it is ready
and, after a line on its input, another one with what it measured.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import anyio
import anyio.to_thread
import numpy as np

import l5
from catfish_app._client import RTreeClient
from catfish_app._data import demo_segments
from catfish_app._measure import Window, make_windows, measure
from catfish_app._rtree import Floats

WINDOWS = 20_000
CHECKED = 25


def brute_force(rects: Floats, window: Window) -> list[int]:
    """Return the rows of all rectangles that meet a window, by looking at each of them."""
    x0, y0, x1, y1 = window
    meets = (rects[:, 0] <= x1) & (rects[:, 2] >= x0) & (rects[:, 1] <= y1) & (rects[:, 3] >= y0)
    return np.flatnonzero(meets).tolist()


async def verify(tree: RTreeClient, rects: Floats, windows: list[Window]) -> int:
    """Compare answers with a brute-force search; return how many; `RuntimeError` if one differs."""
    for window in windows:
        found = np.sort(await tree.search(window)).tolist()
        if found != brute_force(rects, window):
            raise RuntimeError(f"the answer for {window} is wrong: {len(found)} ids")
    return len(windows)


def why(report: l5.UpgradeReport) -> str:
    """Say in a few words why a connection uses its transport."""
    if report.upgraded:
        return f"upgraded from {report.bootstrap}"
    return f"no shm: {report.reasons.get('shm', 'this connection began there')}"


async def main(url: str, seconds: float, seed: int) -> None:
    """Be one client."""
    rects = demo_segments()
    # Ways to ask a server are compared; searching in its memory is none.
    async with await RTreeClient.connect(url, mode="server") as tree:
        report = tree.connection.upgrade_report
        bounds = await tree.bounds()
        assert bounds is not None
        windows = make_windows(bounds, rects, WINDOWS, seed)
        print(json.dumps({"url": url, "transport": report.transport}), flush=True)
        if not await anyio.to_thread.run_sync(sys.stdin.readline):
            return  # whoever started this is gone
        measured = await measure(tree, windows, seconds)
        checked = await verify(tree, rects, windows[:CHECKED])
    facts = {"transport": report.transport, "why": why(report), "url": url, "verified": checked}
    print(json.dumps(facts | measured.as_dict()), flush=True)


if __name__ == "__main__":
    uvloop = importlib.util.find_spec("uvloop") is not None
    anyio.run(
        main,
        sys.argv[1],
        float(sys.argv[2]),
        int(sys.argv[3]),
        backend_options={"use_uvloop": uvloop},
    )
