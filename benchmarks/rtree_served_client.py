"""A client process of the benchmark of served trees, ours or PostgreSQL's.

Usage: python -m benchmarks.rtree_served_client KIND ADDRESS SCALE SEED. Prints a line when it is
connected. Then a line of JSON on its input asks for a run, {"seconds": S}, or for the hits of the
first N windows, grown by E on each side, {"check": N, "grow": E}; a line of JSON answers each.
"""

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import catfish_app.blocking
from benchmarks.rtree_peers import workload
from catfish_app import RTreeClient

COUNT = 20_000
WARM_UP = 50
CHUNK = 16
Window = tuple[float, float, float, float]
Search = Callable[[Window], Awaitable[int]]
SQL = "select id from boxes where box && box(point(%s, %s), point(%s, %s))"


async def measure(search: Search, windows: list[Window], seconds: float) -> dict[str, Any]:
    """Search one window after the other for some seconds."""
    for window in windows[:WARM_UP]:
        await search(window)
    times: list[int] = []
    results = number = 0
    began = now = time.perf_counter_ns()
    while now - began < seconds * 1e9:
        for _ in range(CHUNK):
            before = time.perf_counter_ns()
            results += await search(windows[number])
            now = time.perf_counter_ns()
            times.append(now - before)
            number = (number + 1) % len(windows)
    p50, p99 = np.percentile(times, [50, 99]) / 1e3
    return {
        "searches": len(times),
        "seconds": (now - began) / 1e9,
        "results": results,
        "p50_us": float(p50),
        "p99_us": float(p99),
    }


def grown(window: Window, edge: float) -> Window:
    return window[0] - edge, window[1] - edge, window[2] + edge, window[3] + edge


async def obey(search: Search, windows: list[Window]) -> None:
    """Do what the lines on the input ask for, until they end."""
    print("ready", flush=True)
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        wish = json.loads(line)
        if "check" in wish:
            checked = [grown(window, wish["grow"]) for window in windows[: wish["check"]]]
            answer: dict[str, Any] = {"hits": sum([await search(window) for window in checked])}
        else:
            answer = await measure(search, windows, wish["seconds"])
        print(json.dumps(answer), flush=True)


async def ours(address: str, windows: list[Window]) -> None:
    async with await RTreeClient.connect(address, mode="server") as tree:

        async def search(window: Window) -> int:
            return len(await tree.search(window))

        await obey(search, windows)


async def ours_blocking(address: str, windows: list[Window]) -> None:
    with catfish_app.blocking.connect(address, mode="server") as tree:
        # It blocks, in the same loop as PostgreSQL's below, which has nothing else to do.
        async def search(window: Window) -> int:
            return len(tree.search(window))

        await obey(search, windows)


async def postgres(address: str, windows: list[Window]) -> None:
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.cursor(binary=True)
        cursor.execute("set enable_seqscan = off")

        # It blocks: the fastest way there is to ask PostgreSQL from Python.
        async def search(window: Window) -> int:
            return len(cursor.execute(SQL, window, prepare=True).fetchall())

        await obey(search, windows)


def main(kind: str, address: str, scale: str, seed: str) -> None:
    rows = workload.queries(scale, COUNT, seed=int(seed)).tolist()
    windows: list[Window] = [(row[0], row[1], row[2], row[3]) for row in rows]
    run = {"ours": ours, "ours-blocking": ours_blocking, "postgres": postgres}[kind]
    uvloop = importlib.util.find_spec("uvloop") is not None
    anyio.run(run, address, windows, backend_options={"use_uvloop": uvloop})


if __name__ == "__main__":
    main(*sys.argv[1:])
