"""Batches of searches that the server and its client share, beside either alone, and beside both.

There is no peer: the better side alone, and the sum of what the server alone and the client alone
get done, stand in for one.  Server and client have a processor each, for one that is woken by the
other is put beside it else.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import attrs
import numpy as np

import l5
from benchmarks import _harness
from benchmarks._harness import Metric, Row
from benchmarks._quota import NoQuota
from benchmarks.catfish._served import MODELLED, QUOTA, Server, server
from benchmarks.link_model import slow
from benchmarks.rtree_peers import workload
from benchmarks.simulator.link import LinkSpec
from catfish_app import OffloadingClient, RTreeClient

RATE = Metric("rate", "rectangles searched", "1/s")
SERVER, CLIENT, ADAPTIVE = "server", "client", "adaptive"
MODES = (SERVER, CLIENT, ADAPTIVE)
SCALES = ("1e-05", "0.01")
OPENING_S = 60


@attrs.frozen
class Setup:
    """A server, what is between it and its client, and how much the client asks at a time."""

    name: str
    batch: int
    quota: float | None = None
    link: LinkSpec | None = None


SETUPS = (
    Setup("a core", 4_000),
    Setup("a core", 40_000),
    Setup("a tenth of a core", 4_000, QUOTA),
    Setup("a tenth of a core", 40_000, QUOTA),
    Setup("a core, link model", 4_000, link=MODELLED),
    Setup("a tenth of a core, link model", 4_000, QUOTA, MODELLED),
)


def run(quick: bool, rounds: int = _harness.ROUNDS) -> Iterator[Row]:
    """Measure each setup at each scale, the three ways in turns."""
    entries, seconds = (5_000, 0.02) if quick else (100_000, 0.25)
    with tempfile.TemporaryDirectory(prefix="l5-bench-") as name:
        folder = Path(name)
        np.save(folder / "rects.npy", workload.data(entries))
        for setup in SETUPS[: 1 if quick else None]:
            serves = "adaptive" if setup.quota is None else "event"
            try:
                with server(folder, serves, setup.quota) as served, served.awake():
                    for scale in SCALES:
                        yield from rows(setup, scale, served, rounds, seconds)
            except NoQuota as error:
                print(f"batches: {setup.name} left out: {error}", file=sys.stderr)


def rows(setup: Setup, scale: str, served: Server, rounds: int, seconds: float) -> Iterator[Row]:
    queries = workload.queries(scale, setup.batch)
    before = os.sched_getaffinity(0)
    try:
        done = anyio.run(measure, setup, served, queries, rounds, seconds)
    finally:
        os.sched_setaffinity(0, before)
    case = f"batches/{setup.name}/{setup.batch}/{scale}"
    for peer, how in (("the better side alone", max), ("the sum of both", sum)):
        pairs = [(one[ADAPTIVE], how([one[SERVER], one[CLIENT]])) for one in done]
        yield _harness.row(case, None, RATE, peer, pairs)


async def measure(
    setup: Setup, served: Server, queries: np.ndarray, rounds: int, seconds: float
) -> list[Mapping[str, float]]:
    """Return what each way came to, a second, in each round; who begins changes."""
    found: list[Mapping[str, float]] = []
    async with (
        await connected(served) as one,
        await connected(served) as other,
        await connected(served) as third,
    ):
        trees = {
            mode: await tree_of(connection, mode, setup.link)
            for mode, connection in zip(MODES, (one, other, third), strict=True)
        }
        settle_down(served.process.pid)
        for mode in MODES:
            await rate(trees[mode], queries, seconds)
        for number in range(rounds):
            turns = [MODES[(number + place) % len(MODES)] for place in range(len(MODES))]
            found.append({mode: await rate(trees[mode], queries, seconds) for mode in turns})
    return found


async def connected(served: Server) -> l5.Connection:
    return await l5.connect(served.unix, connect_timeout=OPENING_S, hello_timeout=OPENING_S)


async def tree_of(connection: l5.Connection, mode: str, link: LinkSpec | None) -> RTreeClient:
    seen: Any = connection if link is None else slow(connection, link)
    if mode == SERVER:
        return RTreeClient(seen)
    tree = OffloadingClient(seen, mode=mode)  # type: ignore[arg-type]
    await tree.open()
    return tree


def settle_down(server_pid: int) -> None:
    """Give this process a processor, and the server the others."""
    ours, *others = sorted(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{server_pid}/task"):
        os.sched_setaffinity(int(thread), others or [ours])
    os.sched_setaffinity(0, [ours])


async def rate(tree: RTreeClient, queries: np.ndarray, seconds: float) -> float:
    """Search for a while; return how many rectangles a second."""
    searched = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        await tree.search_many(queries)
        searched += len(queries)
        now = time.perf_counter()
    return searched / (now - began)
