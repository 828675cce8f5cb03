"""What one access to remote memory costs: ``python -m benchmarks regions [--json FILE]``.

The owner is a process of its own. Each line is the median of five turns, in nanoseconds of one call
as its caller sees it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

import l5
from l5.abc import RemoteRegion

REGION_BYTES = 16 << 20
PAGE_BYTES = 1024
TURNS = 5
MANY = 64


async def own(url: str) -> None:
    """Export a region and wait."""
    with l5.Region.create(REGION_BYTES, write=True, atomic=True) as region:
        async with l5.serve(lambda request: request, url, hello_timeout=60.0) as server:
            server.export("table", region)
            print("ready", flush=True)
            await anyio.sleep_forever()


def spans(count: int) -> list[tuple[int, int]]:
    """Return pages all over the region."""
    pages = REGION_BYTES // PAGE_BYTES
    return [(number * 7919 % pages * PAGE_BYTES, PAGE_BYTES) for number in range(count)]


async def measure(
    operation: Callable[[], Awaitable[Any]] | Callable[[], Any], calls: int, *, waits: bool
) -> float:
    """Return the nanoseconds of one call."""
    took: list[float] = []
    for _ in range(TURNS):
        began = time.perf_counter_ns()
        if waits:
            for _ in range(calls):
                await operation()
        else:
            for _ in range(calls):
                operation()
        took.append((time.perf_counter_ns() - began) / calls)
    return statistics.median(took)


async def rows_of(region: RemoteRegion, connection: l5.Connection, calls: int) -> dict[str, float]:
    """Measure every operation."""
    wanted = spans(MANY)
    found = {
        "read 8": await measure(lambda: region.read(4096, 8), calls, waits=True),
        "read 1024": await measure(lambda: region.read(4096, 1024), calls, waits=True),
        "read_many 64 x 1024, each": await measure(
            lambda: region.read_many(wanted), max(1, calls // MANY), waits=True
        )
        / MANY,
        "write 8": await measure(lambda: region.write(64, b"12345678"), calls, waits=True),
        "fetch_and_add": await measure(lambda: region.fetch_and_add(0, 1), calls, waits=True),
        "request, to compare": await measure(
            lambda: connection.request(b"x"), min(calls, 2000), waits=True
        ),
    }
    if region.mapping is not None:
        read_now = region.read_now
        found["read_now 1024"] = await measure(lambda: read_now(4096, 1024), calls, waits=False)
    return found


async def compare(url: str, transport: str, calls: int) -> dict[str, float]:
    """Measure over one transport."""
    async with await l5.connect(url, transports=transport, hello_timeout=60.0) as connection:
        region = await connection.open_region("table")
        return await rows_of(region, connection, calls)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks regions", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--own", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.own:
        anyio.run(own, chosen.own)
        return 0
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="l5-") as folder:
        url = f"l5+unix://{folder}/s"
        command = [sys.executable, "-m", "benchmarks.regions", "--own", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            owner.stdout.readline()
            try:
                for transport, calls in (("shm", 100_000), ("unix", 2000)):
                    count = max(64, calls // 100) if chosen.quick else calls
                    results[transport] = anyio.run(compare, url, transport, count)
            finally:
                owner.terminate()
    for transport, found in results.items():
        for name, ns in found.items():
            print(f"{transport:6} {name:28} {ns:12,.0f} ns")
    if chosen.json:
        lines = [json.dumps({"transport": name, **found}) for name, found in results.items()]
        chosen.json.write_text("".join(line + "\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
