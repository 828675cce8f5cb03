"""A client process: ``python -m benchmarks.catfish._client SEED``.

Each line on its input is a wish, JSON with the fields of `Wish`.  The process connects and says so
by a line; after another line on its input it asks for a while, and tells by a line of JSON what it
found.  So the clients of a turn begin together, and nobody else is connected meanwhile.
"""

import json
import sys
import time
from typing import Any

import anyio
import anyio.to_thread
import attrs
import numpy as np

import catfish_app
import l5
from benchmarks.link_model import slow
from benchmarks.simulator.link import LinkSpec
from catfish_app import RTreeClient

CHUNK = 16
HIT_BYTES, REPLY_BYTES = 8, 24
WARM_UP_REQUESTS = 50
Rect = tuple[float, float, float, float]


@attrs.frozen
class Wish:
    """What to do: how to reach the server and who searches, then what to ask for how long."""

    url: str
    mode: str
    link: dict[str, float] | None
    clients: int
    warm_up_s: float
    seconds: float
    queries: str
    """A file of rectangles, as `inserts`."""
    inserts: str
    insert_share: float
    at_once: int = 1
    """Requests that are under way at a time: the threads of a client machine of the paper's."""


class Files:
    """Rectangles of files, from a place of our own on; each file is read once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._read: dict[str, list[Rect]] = {}

    def rects(self, path: str) -> list[Rect]:
        if path not in self._read:
            rows = np.roll(np.load(path), 997 * self._seed, axis=0).tolist()
            self._read[path] = [(r[0], r[1], r[2], r[3]) for r in rows]
        return self._read[path]


class Run:
    """Requests one after the other, or some at a time, for some seconds."""

    def __init__(self, tree: RTreeClient, wish: Wish, files: Files, seed: int) -> None:
        self.tree, self.wish = tree, wish
        self.connection = tree.connection
        self.queries = files.rects(wish.queries)
        self.inserts = files.rects(wish.inserts) if wish.insert_share else []
        self.chance = np.random.default_rng(seed).random(4096).tolist()
        self.first_id = (seed + 1) << 40
        self.times: list[int] = []
        self.hits = 0
        self.inserted = 0

    async def one(self, number: int) -> None:
        before = time.perf_counter_ns()
        if self.inserts and self.chance[number % 4096] < self.wish.insert_share:
            where = self.inserts[self.inserted % len(self.inserts)]
            self.inserted += 1
            await self.tree.insert(where, self.first_id + self.inserted - 1)
        else:
            self.hits += len(await self.tree.search(self.queries[number % len(self.queries)]))
        self.times.append(time.perf_counter_ns() - before)

    async def for_a_while(self, seconds: float, least: int) -> tuple[int, float, list[float]]:
        """Return how many there were, in how many seconds, and the busy shares that were heard."""
        self.times.clear()
        self.hits = number = 0
        heard: list[float] = []
        seen = self.connection.heartbeat.sequence
        began = now = time.perf_counter()

        async def work() -> None:
            nonlocal number, now, seen
            while now - began < seconds or number < least:
                for _ in range(CHUNK):
                    number += 1
                    await self.one(number - 1)
                beat = self.connection.heartbeat
                if beat.sequence != seen:
                    seen = beat.sequence
                    heard.append(beat.busy_share)
                now = time.perf_counter()

        if self.wish.at_once == 1:
            await work()
        else:
            async with anyio.create_task_group() as tasks:
                for _ in range(self.wish.at_once):
                    tasks.start_soon(work)
            now = time.perf_counter()
        return number, now - began, heard

    async def run(self) -> dict[str, Any]:
        await self.for_a_while(self.wish.warm_up_s, WARM_UP_REQUESTS)
        before = self.by_clients()
        number, taken_s, heard = await self.for_a_while(self.wish.seconds, 1)
        by_clients = self.by_clients()
        searches = number - (by_clients["inserted"] - before["inserted"])
        sent = self.hits * HIT_BYTES + number * REPLY_BYTES
        return {
            "rate": number / taken_s,
            "mean_us": float(np.mean(self.times)) / 1e3,
            "p99_us": float(np.percentile(self.times, 99)) / 1e3,
            "busy_share": float(np.mean(heard)) if heard else None,
            "bytes_per_s": sent / taken_s,
            "offloaded": (by_clients["client"] - before["client"]) / max(1, searches),
        }

    def by_clients(self) -> dict[str, int]:
        client = 0
        if isinstance(self.tree, catfish_app.OffloadingClient):
            client = self.tree.statistics().client
        return {"client": client, "inserted": self.inserted}

    async def undo(self) -> None:
        """Take out what was put in: the tree of the next turn is that of this one."""
        for number in range(self.inserted):
            where = self.inserts[number % len(self.inserts)]
            await self.tree.delete(where, self.first_id + number)


async def line() -> str:
    return await anyio.to_thread.run_sync(sys.stdin.readline)


async def obey(wish: Wish, files: Files, seed: int) -> dict[str, Any]:
    async with await l5.connect(wish.url, connect_timeout=60, hello_timeout=60) as connection:
        seen: Any = connection
        if wish.link is not None:
            seen = slow(connection, LinkSpec(**wish.link), wish.clients)
        tree = RTreeClient(seen)
        if wish.mode != "server":
            tree = catfish_app.OffloadingClient(seen, mode=wish.mode)  # type: ignore[arg-type]
            await tree.open()
        run = Run(tree, wish, files, seed)
        print("ready", flush=True)
        await line()
        found = await run.run()
        await run.undo()
        return found


async def serve(seed: int) -> None:
    files = Files(seed)
    while text := await line():
        found = await obey(Wish(**json.loads(text)), files, seed)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    anyio.run(serve, int(sys.argv[1]))
