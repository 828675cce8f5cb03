"""A client process: ``python -m benchmarks.catfish._client JSON``.

The argument says where the server is and how to search; a line tells that it is connected.  Then
each line on its input asks for a run, {"seconds", "queries", "inserts", "insert_share"} (files of
rectangles), and a line of JSON answers it.
"""

import json
import sys
import time
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import catfish_app
import l5
from benchmarks.link_model import slow
from benchmarks.simulator.link import LinkSpec
from catfish_app import RTreeClient

CHUNK = 16
HIT_BYTES, REPLY_BYTES = 8, 24
Rect = tuple[float, float, float, float]


def rects(path: str, seed: int) -> list[Rect]:
    """Return the rectangles of a file, from a place of our own on."""
    rows = np.load(path)
    return [(r[0], r[1], r[2], r[3]) for r in np.roll(rows, 997 * seed, axis=0).tolist()]


class Run:
    """Requests one after the other, for some seconds."""

    def __init__(self, tree: RTreeClient, connection: Any, wish: dict[str, Any], seed: int) -> None:
        self.tree, self.connection, self.wish = tree, connection, wish
        self.queries = rects(wish["queries"], seed)
        self.inserts = rects(wish["inserts"], seed) if wish["insert_share"] else []
        self.chance = np.random.default_rng(seed).random(4096).tolist()
        self.times: list[int] = []
        self.hits = 0
        self.inserted = 0

    async def one(self, number: int) -> None:
        before = time.perf_counter_ns()
        if self.inserts and self.chance[number % 4096] < self.wish["insert_share"]:
            self.inserted += 1
            where = self.inserts[self.inserted % len(self.inserts)]
            await self.tree.insert(where, (1 << 40) + self.inserted)
        else:
            self.hits += len(await self.tree.search(self.queries[number % len(self.queries)]))
        self.times.append(time.perf_counter_ns() - before)

    async def run(self) -> dict[str, Any]:
        for number in range(50):
            await self.one(number)
        self.times.clear()
        self.hits = number = 0
        heard: list[float] = []
        seen = self.connection.heartbeat.sequence
        began = now = time.perf_counter()
        while now - began < self.wish["seconds"]:
            for _ in range(CHUNK):
                await self.one(number)
                number += 1
            beat = self.connection.heartbeat
            if beat.sequence != seen:
                seen = beat.sequence
                heard.append(beat.busy_share)
            now = time.perf_counter()
        sent = self.hits * HIT_BYTES + number * REPLY_BYTES
        return {
            "rate": number / (now - began),
            "mean_us": float(np.mean(self.times)) / 1e3,
            "p99_us": float(np.percentile(self.times, 99)) / 1e3,
            "busy_share": float(np.mean(heard)) if heard else None,
            "bytes_per_s": sent / (now - began),
        }


async def obey(given: dict[str, Any]) -> None:
    connection = await l5.connect(given["url"], connect_timeout=60, hello_timeout=60)
    async with connection:
        seen: Any = connection
        if given["link"] is not None:
            seen = slow(connection, LinkSpec(**given["link"]), given["clients"])
        tree = RTreeClient(seen)
        if given["mode"] != "server":
            tree = catfish_app.OffloadingClient(seen, mode=given["mode"])
        print("ready", flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            found = await Run(tree, connection, json.loads(line), given["seed"]).run()
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    anyio.run(obey, json.loads(sys.argv[1]))
