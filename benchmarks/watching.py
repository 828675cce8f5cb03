"""What it costs to be watched: a request while `l5 top` looks, and while a tap records.

There is no peer: the same process, unwatched, stands in for one.  Client and server share a process
and an event loop, and what is counted is that process's time, so other work hardly shows; the
thread that answers `l5 top`, and the one that writes what a tap records, are in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import anyio

import l5
from benchmarks import _harness
from benchmarks._harness import Metric, Row

COST = Metric("cpu_us", "processor time of a request and its answer, both ends", "us")
SIZE_BYTES = 64


@contextmanager
def watched() -> Generator[None]:
    """`l5 top` in a process of its own, ten times as often as it looks by itself."""
    command = [sys.executable, "-m", "l5", "top", str(os.getpid()), "--json", "--interval", "0.1"]
    with l5.open_status(), subprocess.Popen(command, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        top.stdout.readline()
        try:
            yield
        finally:
            top.kill()


@contextmanager
def tapped() -> Generator[None]:
    """A tap that records to a file."""
    with tempfile.TemporaryDirectory() as folder, l5.tap(Path(folder) / "frames.pcapng"):
        yield


WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "l5 top": watched,
    "a tap": tapped,
}
TRANSPORTS = {"shm": "l5+shm://{}/s", "unix": "l5+unix://{}/s?transports=unix"}


def run(quick: bool, rounds: int = _harness.ROUNDS) -> Iterator[Row]:
    """Measure each way of watching beside none, on shared memory and on a socket."""
    count = 200 if quick else 5_000
    for transport, url in TRANSPORTS.items():
        for name, way in WAYS.items():
            pairs = [
                (cost_us(url, way, count), cost_us(url, nullcontext, count)) for _ in range(rounds)
            ]
            yield _harness.row(f"watching/{transport}, {name}", None, COST, "nobody", pairs)


def cost_us(url: str, way: Callable[[], AbstractContextManager[None]], count: int) -> float:
    """Return what a request costs while it is watched that way; warmed up before."""

    async def main(place: str) -> float:
        async with l5.serve(bytes.upper, place), await l5.connect(place) as connection:
            payload = bytes(SIZE_BYTES)
            for _ in range(count // 10):
                await connection.request(payload)
            before = time.process_time_ns()
            for _ in range(count):
                await connection.request(payload)
            return (time.process_time_ns() - before) / count / 1e3

    with tempfile.TemporaryDirectory() as folder, way():
        return anyio.run(main, url.format(folder))
