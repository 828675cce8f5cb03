"""One index, many processes: a pre-forking web server over a shared tree, and over copies.

All sides are uvicorn with the same number of workers and the same data (the world's coasts and
borders); ours is `examples/prefork_web/app.py` and the process that serves its tree, whose memory
the workers search themselves; the others are the same with searches by the server, and `copies.py`
with a shapely STRtree in each worker. Memory is proportional set size (what is shared
counts once), of all processes of a side; the index alone is what a side has beyond the same web
server without any index. Latency is that of a request by HTTP on a connection that stays open.
"""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import attrs
import numpy as np
import psutil

from benchmarks import _report
from benchmarks._harness import Metric, Row, Sample, compare, take_turns
from catfish_app._data import demo_segments
from catfish_app._measure import make_windows

EXAMPLE = Path(__file__).parent.parent / "examples" / "prefork_web"
ROOT = EXAMPLE.parent.parent
WORLD = (-180.0, -90.0, 180.0, 90.0)
WORKERS = 4
PATIENCE_S = 120.0
METRICS = (
    Metric("pss_mib", "memory of all processes", "MiB"),
    Metric("index_mib", "memory for the index", "MiB"),
    Metric("p50_us", "p50 of a request by HTTP", "us"),
    Metric("p99_us", "p99 of a request by HTTP", "us"),
    Metric("start_s", "until all workers answer", "s"),
)
BARE = (
    "from starlette.applications import Starlette; from starlette.responses import JSONResponse;"
    "from starlette.routing import Route; import os, numpy, catfish_app, shapely\n"
    "async def within(request): return JSONResponse({'worker': os.getpid(), 'count': 0})\n"
    "app = Starlette(routes=[Route('/within', within)])\n"
)


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process and its children."""
    total = 0
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        text = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return total * 1024


@attrs.define(eq=False)
class Side:
    """A web server with so many workers, and what else it needs."""

    name: str
    module: str
    folder: str
    workers: int
    requests: int
    windows: list[Any]
    tree: str = ""
    """Who searches the one tree, server or client; else each worker has its own."""
    bare_bytes: int = 0
    started: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    start_s: float = 0.0
    port: int = 0

    def __enter__(self) -> "Side":
        began = time.monotonic()
        environment = os.environ | {"PYTHONPATH": f"{self.folder}:{EXAMPLE}:{ROOT}"}
        if self.tree:
            url = f"l5+unix://{self.folder}/tree.sock"
            self._start("catfish_app", "serve", url, "--load", "demo", env=environment)
            environment |= {"TREE_URL": url, "TREE_MODE": self.tree}
            self._until(self._listening)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = ("--workers", str(self.workers), "--port", str(self.port))
        web = (f"{self.module}:app", *options, "--log-level", "warning", "--no-access-log")
        self._start("uvicorn", *web, env=environment)
        self._until(lambda: len(self._answering()) == self.workers)
        self.start_s = time.monotonic() - began
        return self

    def __exit__(self, *_: Any) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(30)

    def _start(self, module: str, *arguments: str, env: dict[str, str]) -> None:
        command = [sys.executable, "-m", module, *arguments]
        with Path(self.folder, f"{module}.out").open("wb") as output:
            self.started.append(subprocess.Popen(command, env=env, cwd=self.folder, stdout=output))

    def _listening(self) -> bool:
        return "listening on" in Path(self.folder, "catfish_app.out").read_text()

    def _until(self, ready: Any) -> None:
        end = time.monotonic() + PATIENCE_S
        while not ready():
            ended = [process.args for process in self.started if process.poll() is not None]
            if ended or time.monotonic() > end:
                raise RuntimeError(f"{self.name} did not start: {ended or 'no answer'}")
            time.sleep(0.05)

    def _answering(self) -> set[bytes]:
        """Return which workers answer; whoever accepts first answers, so ask many at once."""
        seen: set[bytes] = set()
        connections = [self._connection() for _ in range(4 * self.workers)]
        try:
            for connection in connections:
                connection.request("GET", "/within?box=1,1,2,2")
            for connection in connections:
                seen.add(connection.getresponse().read().partition(b",")[0])
        except OSError:
            pass
        finally:
            for connection in connections:
                connection.close()
        return seen

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def pids(self) -> list[int]:
        """Return all processes, for the eye on who else computes."""
        found: list[int] = []
        for process in self.started:
            children = psutil.Process(process.pid).children(recursive=True)
            found += [process.pid, *(child.pid for child in children)]
        return found

    def memory_bytes(self) -> int:
        return sum(pss_bytes(process.pid) for process in self.started)

    def measure(self) -> Sample:
        """Ask one window after the other on one connection."""
        latencies: list[int] = []
        connection = self._connection()
        for x0, y0, x1, y1 in self.windows[: self.requests]:
            began = perf_counter_ns()
            connection.request("GET", f"/within?box={x0},{y0},{x1},{y1}")
            answer = connection.getresponse()
            content = answer.read()
            latencies.append(perf_counter_ns() - began)
            assert answer.status == 200, content
        connection.close()
        p50, p99 = np.percentile(np.array(latencies), [50, 99]) / 1e3
        memory = self.memory_bytes()
        return {
            "p50_us": float(p50),
            "p99_us": float(p99),
            "pss_mib": memory / 2**20,
            "index_mib": max(0, memory - self.bare_bytes) / 2**20,
            "start_s": self.start_s,
        }


def run(quick: bool = False, rounds: int | None = None) -> Iterator[Row]:
    """Measure both sides in turn."""
    workers, requests = (2, 100) if quick else (WORKERS, 2000)
    windows = make_windows(WORLD, demo_segments(), requests, seed=5)
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(4)]
        Path(folders[3], "bare.py").write_text(BARE)
        with Side("bare", "bare", folders[3], workers, requests, windows) as bare:
            bare_bytes = bare.memory_bytes()
        sides = [
            Side("workers search", "app", folders[0], workers, requests, windows, tree="client"),
            Side("server searches", "app", folders[1], workers, requests, windows, tree="server"),
            Side("STRtree in each worker", "copies", folders[2], workers, requests, windows),
        ]
        count = rounds or (1 if quick else 5)
        _report.begin(f"web server, {workers} workers", count * len(sides))
        for side in sides:
            side.bare_bytes = bare_bytes
            stack.enter_context(side)
        done = take_turns(sides, count, repeats=0 if quick else 2, on_measured=_report.advance)
    names = [side.name for side in sides[1:]]
    yield from compare(f"web server, {workers} workers", [None, None], METRICS, names, done)
