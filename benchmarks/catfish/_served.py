"""Points that are measured: a server, and up to eight clients, each a process of its own.

The server has one worker, so that it, and not the machine, is what clients can be too many for; or
it has a share of a processor by a quota, and leaves the rest to its clients.  All methods of a
setup take turns within a round, and each client is connected while it has its turn, no longer.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks import _report
from benchmarks._clients import ask, read
from benchmarks.catfish import _quota
from benchmarks.catfish._figure import HERE, Point, Scope, left_out
from benchmarks.catfish._simulated import TITLES
from benchmarks.rtree_peers import workload
from benchmarks.simulator.link import GBPS, LinkSpec

CLIENTS = (1, 2, 4, 8)
QUERIES = 4000
MODELLED = LinkSpec(10 * GBPS, latency_s=20e-6, verb_s=1e-6)
"""Between an Ethernet and an InfiniBand: 10 Gb/s, 20 us, a million reads a second."""
QUOTA = 0.1
AT_ONCE = 4
"""Searches of each client process: the paper's client machines have many threads, each of which
waits for its search; one that waits alone uses either the server or its own processor."""
LINKED = f"{HERE}, link model 10 Gb/s, {AT_ONCE} searches at a time"
LIMITED = f"{HERE}, server has {QUOTA:.0%} of a core, {AT_ONCE} searches at a time"


@attrs.frozen
class Way:
    """A method that is measured: how to reach the server, and who searches."""

    name: str
    query: str = ""
    """Of the URL of the server's Unix socket; nothing: shared memory."""
    mode: str = "server"
    tcp: bool = False


@attrs.frozen
class Setup:
    """What methods are compared in: a server, and what is between it and its clients."""

    name: str
    ways: tuple[Way, ...]
    link: LinkSpec | None = None
    quota: float | None = None
    serves: tuple[str, ...] = ("adaptive",)
    """What the server's worker does while nothing comes; several: one server for each way."""
    at_once: int = 1
    """Requests that each client process has under way."""
    judged: tuple[str, str, str, str] | None = None
    """Two methods, the one that is to be as good as the better of them, and the goal."""

    def serving(self, number: int) -> str:
        """Return what the server of the way with this number does."""
        return self.serves[number % len(self.serves)]


TCP = Way("TCP loopback", tcp=True)
UNIX = Way("Unix socket", "?transports=unix")
SERVER = Way("server only")
CLIENT = Way("client only", mode="client")
ADAPTIVE = Way("adaptive", mode="adaptive")
PURE = (SERVER, CLIENT, ADAPTIVE)
R9 = (SERVER.name, CLIENT.name, ADAPTIVE.name, "R9")
SETUPS = (
    Setup(HERE, (TCP, UNIX, *PURE)),
    Setup(LINKED, PURE, link=MODELLED, at_once=AT_ONCE, judged=R9),
    # Who spins while nothing comes uses up the quota; who sleeps does not.
    Setup(LIMITED, PURE, link=MODELLED, quota=QUOTA, serves=("event",), at_once=AT_ONCE, judged=R9),
)
OVER_TCP = Setup(HERE, (TCP,))
OVER_UNIX = Setup(HERE, (UNIX,))
POLLS, SLEEPS, ADAPTS = "worker polls", "worker sleeps", "worker adapts"
WAITING = Setup(
    HERE,
    (Way(POLLS), Way(SLEEPS, "?spin_us=0"), Way(ADAPTS)),
    serves=("poll", "event", "adaptive"),
    judged=(POLLS, SLEEPS, ADAPTS, "R11"),
)


@attrs.frozen
class Data:
    """What is served, and what is asked."""

    name: str
    rects: np.ndarray
    queries: np.ndarray
    inserts: np.ndarray


class Fleet:
    """The client processes; which way they go, they are told for each turn."""

    def __init__(self, count: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.catfish._client", str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(count)
        ]

    def measure(self, way: Way, clients: int, wish: Mapping[str, Any]) -> dict[str, float]:
        """Let some of the clients ask at once; return what all of them found."""
        some = self._processes[:clients]
        for process in some:
            send(process, json.dumps({**wish, "mode": way.mode, "clients": clients}))
        for process in some:
            read(process, way.name)
        found = ask(some, {}, way.name)
        return together(found)

    def end(self) -> None:
        for process in self._processes:
            process.communicate()


def send(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def together(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sum up what the clients of one turn found."""
    shares = [one["busy_share"] for one in found if one["busy_share"] is not None]
    rate = sum(one["rate"] for one in found)
    values = {
        "rate": rate,
        "mean_us": sum(one["mean_us"] * one["rate"] for one in found) / rate,
        "p99_us": max(one["p99_us"] for one in found),
        "bytes_per_s": sum(one["bytes_per_s"] for one in found),
        "offloaded": sum(one["offloaded"] * one["rate"] for one in found) / rate,
    }
    return values | ({"busy_share": float(np.mean(shares))} if shares else {})


@attrs.frozen
class Server:
    """A server process that is stopped when it is not its turn, and where it listens."""

    unix: str
    tcp: str
    process: "subprocess.Popen[str]"

    @contextmanager
    def awake(self) -> Generator[None]:
        """Let it run within the block: one that polls would take a processor from the others."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)


@contextmanager
def server(folder: Path, serves: str, quota: float | None = None) -> Generator[Server]:
    """Serve `folder`/rects.npy by one worker, which is stopped between turns.

    Raises `_quota.NoQuota`.
    """
    unix = f"l5+unix://{folder}/{serves}{'' if quota is None else '-limited'}.sock"
    patient = "?hello_timeout=60"  # many processes begin at once, beside workers that poll
    words = ["serve", unix + patient, f"l5+tcp://127.0.0.1:0{patient}", "--json"]
    with ExitStack() as stack:
        procs = None if quota is None else stack.enter_context(_quota.group(quota))
        process = subprocess.Popen(
            [sys.executable, "-m", "catfish_app", *words, "--mode", serves]
            + ["--load", str(folder / "rects.npy")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended with status {process.wait()}")
            if procs is not None:  # loading is over
                procs.write_text(str(process.pid))
            tcp = next(url for url in json.loads(line)["urls"] if url.startswith("l5+tcp"))
            process.send_signal(signal.SIGSTOP)
            yield Server(unix, tcp, process)
        finally:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # it ends when it runs
            process.communicate()


class Measured:
    """Some data, its server or servers, and the clients; used as a context manager."""

    def __init__(self, scope: Scope, data: Sequence[Data], insert_share: float) -> None:
        self.scope, self.data, self.insert_share = scope, data, insert_share
        self.counts = scope.some(*CLIENTS)
        self._stack = ExitStack()

    def __enter__(self) -> "Measured":
        folder = tempfile.TemporaryDirectory(prefix="l5-bench-")
        self.folder = Path(self._stack.enter_context(folder))
        np.save(self.folder / "rects.npy", self.data[0].rects)
        for number, data in enumerate(self.data):
            np.save(self.folder / f"queries{number}.npy", data.queries)
            np.save(self.folder / f"inserts{number}.npy", data.inserts)
        self.fleet = Fleet(max(self.counts))
        self._stack.callback(self.fleet.end)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wish(self, number: int, setup: Setup) -> dict[str, Any]:
        """Return what all ways of a setup are asked with the data of this number."""
        return {
            "link": None if setup.link is None else attrs.asdict(setup.link),
            "warm_up_s": self.scope.warm_up_s,
            "seconds": self.scope.seconds,
            "queries": str(self.folder / f"queries{number}.npy"),
            "inserts": str(self.folder / f"inserts{number}.npy"),
            "insert_share": self.insert_share,
            "at_once": setup.at_once,
        }

    def points(self, setup: Setup, parts_after: int) -> Iterator[Point]:
        """Measure a setup with each number of clients, at each scale."""
        with ExitStack() as stack:
            try:
                served = {
                    kind: stack.enter_context(server(self.folder, kind, setup.quota))
                    for kind in setup.serves
                }
            except _quota.NoQuota as error:
                left_out(setup.name, error)
                return
            left = len(self.data) * len(self.counts) + parts_after
            for number, data in enumerate(self.data):
                steps = len(self.counts) * self.scope.rounds * len(setup.ways)
                _report.begin(f"{setup.name.removeprefix('measured: ')}, {data.name}", steps)
                for clients in self.counts:
                    rounds = [
                        self.turn(setup, served, clients, self.wish(number, setup), which)
                        for which in self.scope.pace.rounds(self.scope.rounds, left)
                    ]
                    left -= 1
                    yield from points_of(data.name, clients, setup, rounds)

    def turn(
        self,
        setup: Setup,
        served: Mapping[str, Server],
        clients: int,
        wish: Mapping[str, Any],
        which: int,
    ) -> dict[str, dict[str, float]]:
        """Let each way have its turn; who begins changes."""
        found: dict[str, dict[str, float]] = {}
        for place in range(len(setup.ways)):
            number = (which + place) % len(setup.ways)
            way = setup.ways[number]
            server = served[setup.serving(number)]
            url = server.tcp if way.tcp else server.unix + way.query
            with server.awake():
                found[way.name] = self.fleet.measure(way, clients, {**wish, "url": url})
            _report.advance()
        return found


def points_of(
    panel: str, clients: int, setup: Setup, rounds: Sequence[dict[str, dict[str, float]]]
) -> Iterator[Point]:
    for way in setup.ways:
        keys = rounds[0][way.name].keys()
        values = {
            key: tuple(one[way.name][key] for one in rounds if key in one[way.name]) for key in keys
        }
        yield Point(panel, way.name, clients, values, False, setup=setup.name)
    if setup.judged is not None:
        one, other, adaptive, goal = setup.judged
        values = {
            "vs_best": tuple(_over(each, adaptive, (one, other), max) for each in rounds),
            "vs_sum": tuple(_over(each, adaptive, (one, other), sum) for each in rounds),
        }
        yield Point(panel, adaptive, clients, values, False, goal, setup.name)


def _over(
    one: Mapping[str, Mapping[str, float]], adaptive: str, pure: Sequence[str], how: Any
) -> float:
    return one[adaptive]["rate"] / how([one[name]["rate"] for name in pure])


def points(
    scope: Scope,
    data: Sequence[Data],
    insert_share: float = 0.0,
    setups: Sequence[Setup] = SETUPS,
    parts_after: int = 0,
) -> Iterator[Point]:
    """Measure in some setups what is asked of one tree; each of `data` has the same rectangles.

    `parts_after` tells how many parts of the run (a number of clients, data, a setup) come later.
    """
    if not scope.measured:
        return
    with Measured(scope, data, insert_share) as measured:
        parts = len(data) * len(measured.counts)
        for number, setup in enumerate(setups, 1):
            yield from measured.points(setup, (len(setups) - number) * parts + parts_after)


def of_paper(scope: Scope, scales: Sequence[str]) -> list[Data]:
    """Return the paper's rectangles, and what is asked of them at these scales."""
    if not scope.measured:
        return []
    rects = workload.data(scope.entries)
    return [
        Data(
            TITLES[scale],
            rects,
            workload.queries(scale, QUERIES),
            workload.inserts(scale, QUERIES),
        )
        for scale in scales
    ]
