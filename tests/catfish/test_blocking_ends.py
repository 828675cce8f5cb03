"""The client without an event loop: many threads, time that is over, and ends of either side."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import anyio
import numpy as np
import pytest

import l5
import l5.blocking
from catfish_app import RTree, blocking
from tests._patience import PATIENTLY
from tests.blocking._ends import PATIENCE_S, in_thread, until
from tests.catfish._support import boxes, meeting
from tests.catfish._threads import MAPPED, SOCKETS, served, serving

EVERYTHING = (-1.0, -1.0, 3.0, 3.0)
THREADS = 20  # more than there are buffers kept
MODES = [("server", way) for way in (*MAPPED[:1], *SOCKETS)] + [("client", MAPPED[0])]
each_mode = pytest.mark.parametrize(("mode", "way"), [*MODES, ("adaptive", MAPPED[0])])


# ---- threads -------------------------------------------------------------------------------------


@each_mode
def test_threads_share_a_client_while_the_tree_changes(mode: str, way: str, tmp_path: Path) -> None:
    """What is there throughout is found, once, by all; what others insert and delete may be."""
    stable = boxes(1500)
    tree = RTree.bulk(stable, shared=True, capacity=8000)
    together = threading.Barrier(THREADS)

    def found(ids: np.ndarray) -> list[int]:
        assert len(np.unique(ids)) == len(ids)
        return sorted(ids[ids < 1500].tolist())

    def work(number: int) -> None:
        together.wait(PATIENCE_S)
        for query in boxes(12, seed=number, edge=0.3).tolist():
            assert found(client.search(query)) == meeting(stable, query)
            assert client.count(query) >= len(meeting(stable, query))
            ids, distances = client.nearest(query, 3)
            assert len(ids) == 3 and distances.tolist() == sorted(distances)
        for id, rect in enumerate(boxes(5, seed=100 + number).tolist(), 1000 * (2 + number)):
            client.insert(rect, id)
            assert id in client.search(rect).tolist()
            assert client.delete(rect, id)
            assert id not in client.search(rect).tolist()
        queries = boxes(40, seed=200 + number, edge=0.1)
        offsets, ids = client.search_many(queries)
        for row in range(40):
            wanted = meeting(stable, queries[row])
            assert found(ids[int(offsets[row]) : int(offsets[row + 1])]) == wanted
        assert len(found(client.search(EVERYTHING))) == 1500

    with served(tmp_path, tree, way, mode) as (client, loop):
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        assert client.count(EVERYTHING) == 1500
        loop.server.tree.check()
        if isinstance(client, blocking.OffloadingClient):
            seen = client.statistics()
            searches = THREADS * (12 * 3 + 5 * 2 + 40 + 1) + 1
            assert seen.server + seen.client == searches  # none was lost in counting
            assert seen.server <= seen.disturbed or mode == "adaptive"


def test_threads_share_a_policy(tmp_path: Path) -> None:
    """A policy is asked by one thread at a time, so it may be any object."""

    class Careless:
        """Would be wrong if two threads were in it."""

        inside = asked = told = 0

        def alone(self) -> None:
            assert not self.inside
            self.inside += 1
            for _ in range(100):  # long enough for another thread to come in
                pass
            self.inside -= 1

        def choose(self, now: float) -> l5.Path:
            self.alone()
            self.asked += 1
            return l5.Path.CLIENT if self.asked % 2 else l5.Path.SERVER

        def observe(
            self, path: l5.Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
        ) -> None:
            self.alone()
            self.told += 1

        def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
            self.alone()

    policy, switching = Careless(), sys.getswitchinterval()
    with serving(tmp_path, RTree.bulk(boxes(100), shared=True)) as loop:
        with blocking.connect(loop.url, policy=policy) as client:
            sys.setswitchinterval(1e-6)
            try:
                with ThreadPoolExecutor(4) as pool:
                    counts = list(pool.map(client.count, [EVERYTHING] * 400))
            finally:
                sys.setswitchinterval(switching)
            assert counts == [100] * 400
    assert policy.asked == policy.told == 400


# ---- time ----------------------------------------------------------------------------------------


@contextmanager
def silent_server(folder: Path, answers: Callable[[bytes], bytes | None]) -> Generator[str]:
    """A server that answers some requests, and others when the block is left."""
    over = threading.Event()

    def handle(request: bytes) -> bytes:
        answer = answers(request)
        if answer is None:
            over.wait(PATIENCE_S)
            return b""
        return answer

    with l5.blocking.serve(handle, f"l5+unix://{folder}/s.sock", threads=4) as server:
        try:
            yield server.urls[0]
        finally:
            over.set()


CALLS: list[Callable[[Any], Any]] = [
    lambda tree: tree.search(EVERYTHING, timeout=0.01),
    lambda tree: tree.search(EVERYTHING, timeout=0),
    lambda tree: tree.count(EVERYTHING, timeout=0.01),
    lambda tree: tree.nearest((0, 0), 2, timeout=0.01),
    lambda tree: tree.search_many([EVERYTHING], timeout=0.01),
    lambda tree: next(iter(tree.search_iter(EVERYTHING, timeout=0.01).__enter__())),
    lambda tree: tree.insert(EVERYTHING, 1, timeout=0.01),
    lambda tree: tree.insert_many([EVERYTHING], timeout=0.01),
    lambda tree: tree.delete(EVERYTHING, 1, timeout=0.01),
    lambda tree: tree.update(EVERYTHING, 1, EVERYTHING, timeout=0.01),
    lambda tree: tree.load([EVERYTHING], timeout=0.01),
    lambda tree: tree.bounds(timeout=0.01),
    lambda tree: tree.stats(timeout=0.01),
    lambda tree: tree.level_rects(0, timeout=0.01),
]


@pytest.mark.parametrize("mode", ["server", "adaptive"])
def test_every_call_has_a_timeout(mode: str, tmp_path: Path) -> None:
    """The server answers nothing before the call was late, and the connection is sound then."""
    late = threading.Event()

    def answers(request: bytes) -> bytes | None:
        return bytes(32) if late.is_set() else None

    with silent_server(tmp_path, answers) as url:
        for call in CALLS:
            late.clear()
            with blocking.connect(url, mode=mode) as tree:  # type: ignore[arg-type]
                with pytest.raises(TimeoutError):
                    call(tree)
                late.set()
                assert tree.bounds(timeout=PATIENCE_S) == (0.0, 0.0, 0.0, 0.0)


def test_a_timeout_is_for_all_requests_of_a_call(tmp_path: Path) -> None:
    """Each of them is answered soon, all of them together would take seven seconds."""
    kinds: list[int] = []

    def answers(request: bytes) -> bytes:
        kinds.append(request[0])
        if request[0] in (4, 13):  # SEARCH_MANY, LOAD_PART
            sleep(0.005)
        return {4: bytes(8 * 32), 12: bytes(8)}.get(request[0], b"")

    many = np.zeros((31 * 1500, 4))  # 31 to a request of SEARCH_MANY, 24 to one of LOAD_PART
    with (
        silent_server(tmp_path, answers) as url,
        blocking.connect(url, mode="server", max_message_bytes=1 << 10) as tree,
    ):
        with pytest.raises(TimeoutError):
            tree.search_many(many, timeout=0.5)
        assert 0 < kinds.count(4) < 1500
        with pytest.raises(TimeoutError):
            tree.load(many, timeout=1.0)
        until(lambda: kinds[-1] == 15)  # LOAD_ABORT, although the time was over


def test_a_timeout_does_not_hold_up_a_search_that_need_not_wait(tmp_path: Path) -> None:
    with served(tmp_path, RTree.bulk(boxes(100), shared=True), mode="client") as (tree, _):
        ends = monotonic() + 0.05
        while monotonic() < ends:  # it looks after the server meanwhile, many times
            assert len(tree.search(EVERYTHING, timeout=0)) == 100
            assert tree.count(EVERYTHING, timeout=0) == 100


def test_opening_has_a_timeout(tmp_path: Path) -> None:
    with serving(tmp_path, RTree.bulk(boxes(100), shared=True)) as loop:
        with blocking.connect(loop.url, policy=l5.AlwaysClient()) as tree:
            assert isinstance(tree, blocking.OffloadingClient)
            held, done = threading.Event(), threading.Event()

            def hold() -> None:
                with tree._opening:  # pyright: ignore[reportPrivateUsage]
                    held.set()
                    done.wait(PATIENCE_S)

            with in_thread(hold):
                held.wait(PATIENCE_S)
                for timeout in (0.01, 0, -1):
                    with pytest.raises(TimeoutError, match="was not opened within"):
                        tree.search(EVERYTHING, timeout=timeout)
                done.set()
            assert len(tree.search(EVERYTHING, timeout=PATIENCE_S)) == 100
            assert tree.statistics().client == 1


# ---- ends ----------------------------------------------------------------------------------------


@each_mode
def test_use_after_close(mode: str, way: str, tmp_path: Path) -> None:
    with served(tmp_path, RTree.bulk(boxes(100), shared=True), way, mode) as (tree, _):
        assert len(tree.search(EVERYTHING)) == 100
        tree.close()
        tree.close()
        assert "closed" in repr(tree)
        calls: list[Callable[[], object]] = [
            lambda: tree.search(EVERYTHING),
            lambda: tree.count(EVERYTHING),
            lambda: tree.nearest((0, 0)),
            lambda: tree.search_many([EVERYTHING]),
            lambda: tree.insert(EVERYTHING, 1),
            lambda: tree.load([EVERYTHING]),
            lambda: tree.bounds(),
            lambda: list(tree.search_iter(EVERYTHING).__enter__()),
        ]
        for call in calls:
            with pytest.raises(anyio.ClosedResourceError):
                call()


@each_mode
def test_it_is_closed_while_threads_search(mode: str, way: str, tmp_path: Path) -> None:
    with served(tmp_path, RTree.bulk(boxes(500), shared=True), way, mode) as (tree, _):
        done = [0] * 4

        def work(number: int) -> None:
            while True:
                assert len(tree.search(EVERYTHING)) == 500
                done[number] += 1

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work, number) for number in range(4)]
            until(lambda: min(done) > 10 or any(future.done() for future in futures))
            tree.close()
            for future in futures:
                with pytest.raises(anyio.ClosedResourceError):
                    future.result(PATIENCE_S)
        assert min(done) > 10


@pytest.fixture
def process(tmp_path: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A server of 300 rectangles that may be killed, and its URL."""
    np.save(tmp_path / "rects.npy", boxes(300))
    url = f"l5+unix://{tmp_path}/killed.sock"
    words = ["catfish_app", "serve", "--json", "--load", str(tmp_path / "rects.npy"), url]
    with subprocess.Popen(
        [sys.executable, *PATIENTLY, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            yield server, url
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("mode", "policy", "error"),
    [
        ("server", None, anyio.BrokenResourceError),
        ("client", None, l5.RemoteAccessError),
        ("adaptive", l5.AlwaysServer(), anyio.BrokenResourceError),
        ("adaptive", l5.AlwaysClient(), anyio.BrokenResourceError),
    ],
)
def test_a_server_that_is_killed(
    process: tuple[subprocess.Popen[str], str], mode: Any, policy: Any, error: type[Exception]
) -> None:
    server, url = process
    with blocking.connect(url, mode=mode, policy=policy) as tree:
        assert len(tree.search(EVERYTHING)) == 300
        server.send_signal(signal.SIGKILL)
        server.wait()
        ends = monotonic() + PATIENCE_S
        with pytest.raises(error):  # who searches by himself finds out within a millisecond
            while monotonic() < ends:
                assert len(tree.search(EVERYTHING)) == 300
        with pytest.raises((error, anyio.BrokenResourceError)):
            tree.count(EVERYTHING)
        with pytest.raises(anyio.BrokenResourceError):
            tree.insert(EVERYTHING, 1)
