"""Figure 9: what ways of communication are worth, by the size of what is fetched."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.catfish._figure import Axis, Figure, Point, Scope

SIZES = tuple(2**power for power in (1, 5, 8, 11, 14, 17, 20, 23))
WAYS = {
    "TCP loopback, request": ("tcp", "request"),
    "Unix socket, request": ("unix", "request"),
    "shared memory, request": ("shm", "request"),
    "shared memory, read of a region": ("shm", "read"),
}


def points(scope: Scope) -> Iterator[Point]:
    """Fetch chunks from a server process, one at a time."""
    if not scope.measured:
        return
    for name, (transport, how) in WAYS.items():
        with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder:
            words = [transport, how, str(Path(folder) / "s"), str(scope.seconds / 4)]
            words += [str(scope.rounds), *map(str, scope.some(*SIZES))]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.catfish._chunks", *words],
                capture_output=True,
                text=True,
                check=True,
            )
        for line in done.stdout.splitlines():
            size, times = json.loads(line)
            values = {
                "mean_us": tuple(1e6 * taken for taken in times),
                "bytes_per_s": tuple(size / taken for taken in times),
            }
            assert statistics.median(times) > 0
            yield Point("one client", name, size, values, False)


main = Figure(
    9,
    "Figure 9: chunks from a server, one after the other",
    points,
    (Axis("mean_us", "mean latency (us)"), Axis("bytes_per_s", "bytes/s")),
    across="chunk (bytes)",
).main
