"""The served R-tree beside PostgreSQL's GiST index on boxes, asked by processes of Python.

Goals: R7, two and eight clients on shared memory with the usual waiting; R8, eight clients and a
server none of which ever spins, also with clients without an event loop (`catfish_app.blocking`),
which psycopg's are. The data and the windows are those of the Catfish paper (see
`rtree_peers/workload.py`). The clients of both sides are connected all the time and search in
turn; those of PostgreSQL use psycopg's prepared statements with binary results over a Unix socket.
Hits are compared first: a side that finds another number ends the run. PostgreSQL's boxes overlap
with a tolerance of 1e-6 (`EPSILON` of its geometric types), so its number lies between that of the
windows and that of windows grown by as much.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks import _harness
from benchmarks._clients import ask, read
from benchmarks._harness import Metric, Row, Sample
from benchmarks._postgres import Unavailable, cluster, descendants
from benchmarks.rtree_peers import workload

ENTRIES = {True: 200_000, False: 2_000_000}
SECONDS = {True: 0.3, False: 1.5}
CHECKED = 300
TOLERANCE = 1e-6
PEER = "PostgreSQL box GiST"
BLOCKING = "ours, blocking"
ROWS_AT_ONCE = 20_000
METRICS = (
    Metric("rate", "searches per second, all clients", "1/s"),
    Metric("p50_us", "median time of a search", "us"),
    Metric("p99_us", "99th percentile of the time of a search", "us"),
)


@attrs.frozen
class Case:
    name: str
    goal: str
    scale: str
    clients: int
    spins: bool = True
    blocking: bool = False
    """Our client without an event loop is measured, too."""


CASES = (
    Case("served-1e-05-2-clients", "R7", "1e-05", 2),
    Case("served-1e-05-8-clients", "R7", "1e-05", 8),
    Case("served-0.01-2-clients", "R7", "0.01", 2),
    Case("served-0.01-8-clients", "R7", "0.01", 8),
    Case("served-1e-05-8-clients-no-spin", "R8", "1e-05", 8, spins=False, blocking=True),
)


class Clients:
    """The client processes of one side; a `Side` of the harness."""

    def __init__(self, name: str, kind: str, address: str, case: Case, seconds: float) -> None:
        self.name = name
        self._kind = kind
        self._address = address
        self._case = case
        self._seconds = seconds
        self._server_pid = 0
        self._processes: list[subprocess.Popen[str]] = []

    @contextmanager
    def running(self, server_pid: int) -> Generator["Clients"]:
        """Have the processes run and be connected within the block."""
        self._server_pid = server_pid
        module = "benchmarks.rtree_served_client"
        for number in range(self._case.clients):
            words = [self._kind, self._address, self._case.scale, str(100 + number)]
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            for process in self._processes:
                read(process, self.name)
            yield self
        finally:
            for process in self._processes:
                process.communicate()

    def pids(self) -> Iterable[int]:
        return [*descendants(self._server_pid), *(process.pid for process in self._processes)]

    def measure(self) -> Sample:
        results = self._ask_all({"seconds": self._seconds})
        return {
            "rate": sum(result["searches"] / result["seconds"] for result in results),
            "p50_us": float(np.median([result["p50_us"] for result in results])),
            "p99_us": max(result["p99_us"] for result in results),
        }

    def hits(self, grow: float = 0.0) -> int:
        """Return how many rectangles the first windows of all clients, grown, find."""
        wish = {"check": CHECKED, "grow": grow}
        return sum(result["hits"] for result in self._ask_all(wish))

    def _ask_all(self, wish: dict[str, Any]) -> list[dict[str, Any]]:
        return ask(self._processes, wish, self.name)


@contextmanager
def our_server(folder: Path, spins: bool) -> Generator[tuple[str, int]]:
    """Serve the data from a process; give the URL for clients and the pid."""
    url = f"l5+unix://{folder}/{'spin' if spins else 'sleep'}.sock"
    mode = "adaptive" if spins else "event"
    words = ["serve", url, "--json", "--load", str(folder / "data.npy"), "--mode", mode]
    process = subprocess.Popen(
        [sys.executable, "-m", "catfish_app", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the server ended with status {process.wait()}")
        yield url if spins else f"{url}?spin_us=0", process.pid
    finally:
        process.terminate()
        process.communicate()


def run(
    quick: bool,
    rounds: int = _harness.ROUNDS,
    repeats: int = _harness.REPEATS,
    goal: Collection[str] | None = None,
) -> Iterator[Row]:
    """Measure the cases of all goals, or of some; yield the rows of each case as it is done."""
    cases = [case for case in CASES if goal is None or case.goal in goal]
    if not cases:
        return
    rects = workload.data(ENTRIES[quick])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="l5-bench-")))
        np.save(folder / "data.npy", rects)
        try:
            address, pid = stack.enter_context(cluster(lambda at: fill(at, rects)))
        except Unavailable as reason:
            print(f"rtree-served: left out: {reason}", file=sys.stderr)
            return
        for case in cases:
            with our_server(folder, case.spins) as (url, our_pid):
                seconds = SECONDS[quick]
                sides = [
                    (Clients("ours", "ours", url, case, seconds), our_pid),
                    (Clients(PEER, "postgres", address, case, seconds), pid),
                ]
                if case.blocking:
                    sides.append((Clients(BLOCKING, "ours-blocking", url, case, seconds), our_pid))
                with ExitStack() as running:
                    there = [running.enter_context(side.running(of)) for side, of in sides]
                    yield from measure(case, there, rounds, repeats)


def measure(case: Case, sides: Sequence[Clients], rounds: int, repeats: int) -> list[Row]:
    """Compare ours (sides[0]) with PostgreSQL and, if it is there, with our blocking client.

    That one is then compared with PostgreSQL as well, as a case of its own.
    """
    ours, theirs, *blocking = sides
    least, hits, most = ours.hits(), theirs.hits(), ours.hits(grow=1.01 * TOLERANCE)
    if not least <= hits <= most:
        raise RuntimeError(f"{case.name}: {least} hits ({most} within 1e-6), {PEER} has {hits}")
    for side in blocking:
        if (hits := side.hits()) != least:
            raise RuntimeError(f"{case.name}: {least} hits, {side.name} has {hits}")
    done = _harness.take_turns(sides, rounds, repeats=repeats)
    rows = list(_rows(case.name, case.goal, [side.name for side in sides[1:]], done))
    if blocking:
        turned = [attrs.evolve(one, samples=one.samples[::-1]) for one in done]
        rows += _rows(f"{case.name}/blocking", case.goal, [PEER], turned)
    return rows


def _rows(
    case: str, goal: str, peers: Sequence[str], done: Sequence[_harness.Round]
) -> Iterator[Row]:
    for metric in METRICS:
        goals = [goal if metric.key == "rate" and peer == PEER else None for peer in peers]
        yield from _harness.compare(case, goals, [metric], peers, done)


def fill(address: str, rects: np.ndarray) -> None:
    """Load the rectangles as boxes and index them."""
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("create table boxes (id int, box box)")
        with connection.cursor().copy("copy boxes from stdin") as copy:
            for first in range(0, len(rects), ROWS_AT_ONCE):
                rows = rects[first : first + ROWS_AT_ONCE].tolist()
                copy.write(
                    "".join(
                        f"{id}\t({x1!r},{y1!r}),({x0!r},{y0!r})\n"
                        for id, (x0, y0, x1, y1) in enumerate(rows, first)
                    )
                )
        connection.execute("create index on boxes using gist (box)")
        connection.execute("vacuum analyze boxes")
