"""The same over Soft-RoCE, small: ``python -m benchmarks catfish-softroce``, between two machines.

Boots two emulated machines (`scripts.softroce`), serves a small tree on the one and lets clients of
the other search it: over TCP, and over RDMA by the server, by themselves and adaptively.  Emulated
processors are some twenty times slower, and share two real ones: what is to be seen is that all of
it works, and who does the work.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any

import anyio
import attrs
import numpy as np

import catfish_app
import l5
from benchmarks.catfish import _draw
from benchmarks.catfish._figure import Axis, Point, kept, rows_of
from benchmarks.rtree_peers import workload
from catfish_app import RTree, RTreeClient, serve_tree

SETUP = "measured: Soft-RoCE, two emulated machines"
ROOT = Path(__file__).parents[2]
PORT = 7010
ENTRIES = 5000
SCALES = {"1e-05": "scale 0.00001", "0.01": "scale 0.01"}
CLIENTS = (1, 2)
AXES = (
    Axis("rate", "requests/s"),
    Axis("mean_us", "mean latency (us)"),
    Axis("offloaded", "searches by clients", log=False, share=True),
)
TITLE = "Catfish over Soft-RoCE"
# Emulated processors are slow, and the host may be busy.
PATIENT: dict[str, Any] = {"hello_timeout": 60.0}


@attrs.frozen
class Way:
    name: str
    transport: str
    mode: str


WAYS = (
    Way("TCP", "tcp", "server"),
    Way("server only", "rdma", "server"),
    Way("client only", "rdma", "client"),
    Way("adaptive", "rdma", "adaptive"),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks catfish-softroce", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw them")
    parser.add_argument("--from", metavar="FILE", type=Path, dest="kept", nargs="+")
    parser.add_argument("--quick", action="store_true", help="shows that it runs")
    parser.add_argument("--accelerator", choices=("tcg", "kvm"), default="tcg")
    chosen = parser.parse_args(arguments)
    rows = kept(chosen.kept) if chosen.kept else boot(chosen.quick, chosen.accelerator)
    for row in [] if chosen.kept else rows:
        print(json.dumps(row))
    if not rows:
        return 1
    if chosen.json and not chosen.kept:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if chosen.png:
        _draw.draw(chosen.png, TITLE, AXES, "clients", rows)
    return 0


def boot(quick: bool, accelerator: str) -> list[dict[str, Any]]:
    """Run both ends in emulated machines; return the rows that the clients wrote."""
    module = [sys.executable, "-m", "benchmarks.catfish.softroce"]
    with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder:
        command = [sys.executable, "-m", "scripts.softroce", "--nodes", "2", "--out", folder]
        command += ["--accelerator", accelerator, "--env", "PYTHONDONTWRITEBYTECODE=1"]
        command += ["--peer", f"exec {' '.join(module)} serve", "--"]
        command += [*module, "ask", *(["quick"] if quick else [])]
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        found = Path(folder, "0", "rows.jsonl")
        if done.returncode or not found.exists():
            print(f"catfish-softroce: the machines ended with {done.returncode}", file=sys.stderr)
            return []
        return kept([found])


# ---- inside the machines


async def serve() -> None:
    tree = RTree.bulk(workload.data(ENTRIES), shared=True)
    url = f"l5://{os.environ['SOFTROCE_ADDR']}:{PORT}"
    async with serve_tree(tree, url, insecure=True, **PATIENT):
        await anyio.sleep_forever()


async def connect(url: str) -> l5.Connection:
    """Connect to a server that may still be on its way up."""
    end = time.monotonic() + 120
    while True:
        try:
            return await l5.connect(url, connect_timeout=60, **PATIENT)
        except OSError:
            if time.monotonic() > end:
                raise
            await anyio.sleep(0.5)


@attrs.define(eq=False)
class Asker:
    """One client, which asks for a while."""

    tree: RTreeClient
    times: list[float] = attrs.field(factory=list[float])
    by_client: int = 0

    async def ask(self, queries: list[Any], seconds: float) -> None:
        end = time.perf_counter() + seconds
        number = 0
        while (before := time.perf_counter()) < end or not number:
            await self.tree.search(queries[number % len(queries)])
            self.times.append(time.perf_counter() - before)
            number += 1
        if isinstance(self.tree, catfish_app.OffloadingClient):
            self.by_client = self.tree.statistics().client


async def measure(way: Way, clients: int, queries: list[Any], seconds: float) -> dict[str, float]:
    url = f"l5://{os.environ['SOFTROCE_PEER']}:{PORT}?transports={way.transport}"
    async with AsyncExitStack() as stack:
        askers: list[Asker] = []
        for _ in range(clients):
            connection = await connect(url)
            tree = RTreeClient(connection)
            if way.mode != "server":
                offloading = catfish_app.OffloadingClient(connection, mode=way.mode)  # type: ignore[arg-type]
                await offloading.open()
                tree = offloading
            askers.append(Asker(tree))
            stack.push_async_callback(tree.aclose)
            await tree.search(queries[0])
        began = time.perf_counter()
        async with anyio.create_task_group() as asking:
            for asker in askers:
                asking.start_soon(asker.ask, queries, seconds)
        taken_s = time.perf_counter() - began
    times = [taken for asker in askers for taken in asker.times]
    return {
        "rate": len(times) / taken_s,
        "mean_us": float(np.mean(times)) * 1e6,
        "p99_us": float(np.percentile(times, 99)) * 1e6,
        "offloaded": min(1.0, sum(asker.by_client for asker in askers) / len(times)),
    }


async def ask(quick: bool, file: IO[str]) -> None:
    seconds = 0.5 if quick else 4.0
    for scale, title in list(SCALES.items())[: 1 if quick else 2]:
        queries = [tuple(q) for q in workload.queries(scale, 64).tolist()]
        for clients in CLIENTS[: 1 if quick else 2]:
            for way in WAYS:
                found = await measure(way, clients, queries, seconds)
                print(f"{title}, {clients} clients, {way.name}: {found['rate']:.0f}/s", flush=True)
                values = {key: (value,) for key, value in found.items()}
                point = Point(title, way.name, clients, values, False, setup=SETUP)
                for row in rows_of("catfish-softroce", point):
                    print(json.dumps(row), file=file, flush=True)


def inside(role: str, *words: str) -> None:
    if role == "serve":
        anyio.run(serve)
        return
    path = Path(os.environ["SOFTROCE_OUT"], "rows.jsonl")
    with path.open("w", encoding="utf-8") as file:
        anyio.run(ask, "quick" in words, file)


if __name__ == "__main__":
    inside(*sys.argv[1:])
