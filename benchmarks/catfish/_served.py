"""Points that are measured: a server, and up to eight clients, each a process of its own.

The server has one worker, so that it, and not the machine, is what clients can be too many for.
All methods of a figure take turns within a round.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import catfish_app
from benchmarks._clients import ask, read
from benchmarks.catfish._figure import Point, Scope, left_out
from benchmarks.catfish._simulated import TITLES
from benchmarks.rtree_peers import workload
from benchmarks.simulator.link import GBPS, LinkSpec

CLIENTS = (1, 2, 4, 8)
QUERIES = 4000
MODELLED = LinkSpec(10 * GBPS, latency_s=20e-6, verb_s=1e-6)
"""Between an Ethernet and an InfiniBand: 10 Gb/s, 20 us, a million reads a second."""


@attrs.frozen
class Way:
    """A method that is measured: how to reach the server, and who searches."""

    name: str
    query: str = ""
    """Of the URL of the server's Unix socket; None of it: shared memory."""
    mode: str = "server"
    link: LinkSpec | None = None
    serves: str = "adaptive"
    """What the server's worker does while nothing comes."""
    tcp: bool = False


TCP = Way("TCP loopback, measured", tcp=True)
UNIX = Way("Unix socket, measured", "?transports=unix")
SERVER = Way("shm, server only", serves="adaptive")
CLIENT = Way("shm, client only", mode="client")
ADAPTIVE = Way("shm, adaptive", mode="adaptive")
SLOW_SERVER = Way("link model, server only", link=MODELLED)
SLOW_CLIENT = Way("link model, client only", mode="client", link=MODELLED)
SLOW_ADAPTIVE = Way("link model, adaptive", mode="adaptive", link=MODELLED)
WAYS = (TCP, UNIX, SERVER, CLIENT, ADAPTIVE, SLOW_SERVER, SLOW_CLIENT, SLOW_ADAPTIVE)
MODES = (
    Way("worker polls", serves="poll"),
    Way("worker sleeps", "?spin_us=0", serves="event"),
    Way("worker adapts", serves="adaptive"),
)


@attrs.frozen
class Data:
    """What is served, and what is asked."""

    name: str
    rects: np.ndarray
    queries: np.ndarray
    inserts: np.ndarray


def of_paper(scope: Scope, scale: str) -> Data:
    return Data(
        TITLES[scale],
        workload.data(scope.entries),
        workload.queries(scale, QUERIES),
        workload.inserts(scale, QUERIES),
    )


def can_search_itself() -> bool:
    """Tell whether this version's clients search in the server's memory."""
    return hasattr(catfish_app, "OffloadingClient")


class Fleet:
    """The client processes of one way, connected all the time."""

    def __init__(self, way: Way, url: str, count: int) -> None:
        self.way = way
        self._processes: list[subprocess.Popen[str]] = []
        link = None if way.link is None else attrs.asdict(way.link)
        for seed in range(count):
            given = {"url": url, "mode": way.mode, "link": link, "clients": count, "seed": seed}
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.catfish._client", json.dumps(given)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def wait_ready(self) -> None:
        for process in self._processes:
            read(process, self.way.name)

    def measure(self, clients: int, wish: dict[str, Any]) -> dict[str, float]:
        """Let some of the clients ask at once; return what all of them found."""
        found = ask(self._processes[:clients], wish, self.way.name)
        shares = [one["busy_share"] for one in found if one["busy_share"] is not None]
        rate = sum(one["rate"] for one in found)
        mean = sum(one["mean_us"] * one["rate"] for one in found) / rate
        values = {
            "rate": rate,
            "mean_us": mean,
            "p99_us": max(one["p99_us"] for one in found),
            "bytes_per_s": sum(one["bytes_per_s"] for one in found),
        }
        return values | ({"busy_share": float(np.mean(shares))} if shares else {})

    def end(self) -> None:
        for process in self._processes:
            process.communicate()


@contextmanager
def server(folder: Path, serves: str) -> Generator[tuple[str, str]]:
    """Serve `folder`/data.npy by one worker; give the URLs of the Unix socket and of TCP."""
    unix = f"l5+unix://{folder}/{serves}.sock"
    patient = "?hello_timeout=60"  # many processes begin at once, beside workers that poll
    words = ["serve", unix + patient, f"l5+tcp://127.0.0.1:0{patient}", "--json", "--share"]
    process = subprocess.Popen(
        [sys.executable, "-m", "catfish_app", *words, "--mode", serves]
        + ["--load", str(folder / "data.npy")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with status {process.wait()}")
        tcp = next(url for url in json.loads(line)["urls"] if url.startswith("l5+tcp"))
        yield unix, tcp
    finally:
        process.terminate()
        process.communicate()


def measured(
    scope: Scope, data: Data, ways: Sequence[Way], insert_share: float = 0.0
) -> Iterator[Point]:
    """Measure each way with each number of clients; they take turns."""
    counts = scope.some(*CLIENTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="l5-bench-")))
        for name in ("rects", "queries", "inserts"):
            np.save(folder / f"{'data' if name == 'rects' else name}.npy", getattr(data, name))
        served = {
            kind: stack.enter_context(server(folder, kind))
            for kind in dict.fromkeys(way.serves for way in ways)
        }
        fleets: list[Fleet] = []
        for way in ways:
            unix, tcp = served[way.serves]
            fleets.append(Fleet(way, tcp if way.tcp else unix + way.query, max(counts)))
            stack.callback(fleets[-1].end)
            fleets[-1].wait_ready()
        wish = {
            "seconds": scope.seconds,
            "queries": str(folder / "queries.npy"),
            "inserts": str(folder / "inserts.npy"),
            "insert_share": insert_share,
        }
        for clients in counts:
            rounds = [turn(fleets, clients, wish, number) for number in range(scope.rounds)]
            yield from points_of(data.name, clients, ways, rounds)


def turn(
    fleets: Sequence[Fleet], clients: int, wish: dict[str, Any], number: int
) -> dict[str, dict[str, float]]:
    """Let each fleet have its turn; who begins changes."""
    first = number % len(fleets)
    order = [*fleets[first:], *fleets[:first]]
    return {fleet.way.name: fleet.measure(clients, wish) for fleet in order}


def points_of(
    panel: str, clients: int, ways: Sequence[Way], rounds: Sequence[dict[str, dict[str, float]]]
) -> Iterator[Point]:
    for way in ways:
        keys = rounds[0][way.name].keys()
        values = {
            key: tuple(one[way.name][key] for one in rounds if key in one[way.name]) for key in keys
        }
        yield Point(panel, way.name, clients, values, False)
    names = {way.name for way in ways}
    for pure, adaptive, goal in (
        ((SLOW_SERVER, SLOW_CLIENT), SLOW_ADAPTIVE, "R9"),
        (MODES[:2], MODES[2], "R11"),
    ):
        if {adaptive.name, *(way.name for way in pure)} <= names:
            values = {
                "vs_best": tuple(_over(one, adaptive, pure, max) for one in rounds),
                "vs_sum": tuple(_over(one, adaptive, pure, sum) for one in rounds),
            }
            yield Point(panel, adaptive.name, clients, values, False, goal)


def _over(one: dict[str, dict[str, float]], adaptive: Way, pure: Sequence[Way], how: Any) -> float:
    return one[adaptive.name]["rate"] / how([one[way.name]["rate"] for way in pure])


def points(
    scope: Scope,
    scales: Sequence[str],
    insert_share: float = 0.0,
    *,
    only: Sequence[Way] = WAYS,
    data: Data | None = None,
) -> Iterator[Point]:
    """Measure at some scales, or with other data."""
    if not scope.measured:
        return
    ways = [way for way in only if way.mode == "server" or can_search_itself()]
    if len(ways) < len(only):
        left_out("what clients search themselves", "this version's RTreeClient has no mode")
    for scale in scales:
        yield from measured(scope, data or of_paper(scope, scale), ways, insert_share)


def modes(scope: Scope, panel: str) -> Iterator[Point]:
    """Measure what the worker's waiting is worth."""
    if scope.measured:
        yield from measured(scope, attrs.evolve(of_paper(scope, "1e-05"), name=panel), MODES)
