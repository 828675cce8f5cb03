"""A thousand connections, four of them busy: ``python -m benchmarks.crowd``.

What do the idle ones cost?  A server, one process with the busy connections, and three that only
hold theirs.  The server is looked at from outside (`/proc`): its CPU time for a request with and
without the crowd, its descriptors, mappings and memory for a connection, its wake-ups while nobody
asks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs

import l5

HOLDERS = 3
BUSY = 4
RING_BYTES = 65536


@attrs.frozen
class Facts:
    """What a process uses."""

    fds: int
    mappings: int
    anonymous_kib: int
    shared_kib: int
    cpu_ns: int
    sleeps: int

    @classmethod
    def of(cls, pid: int) -> Facts:
        place = Path("/proc", str(pid))
        pairs = (line.split() for line in (place / "status").read_text().splitlines())
        status = {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
        return cls(
            fds=len(os.listdir(place / "fd")),
            mappings=sum(map(is_its_own, (place / "maps").read_text().splitlines())),
            anonymous_kib=int(status["RssAnon:"]),
            shared_kib=int(status["RssShmem:"]),
            cpu_ns=int((place / "schedstat").read_text().split()[0]),
            sleeps=int(status["voluntary_ctxt_switches:"]),
        )


def is_its_own(line: str) -> bool:
    """Tell a line of `maps` from those of libraries, which are loaded when first needed."""
    path = line.split(maxsplit=5)[5:]
    return not path or not path[0].startswith("/") or path[0].startswith("/memfd:")


# ---- the processes


def say(text: object) -> None:
    print(text, flush=True)


async def hear() -> str:
    """Return the next line of standard input; empty at its end."""
    return await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


async def serve(url: str) -> None:
    async with l5.serve(bytes.upper, url, connections_max=100_000, hello_timeout=60.0) as server:
        say(server.urls[0])
        await hear()


async def hold(url: str, count: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            connection = await l5.connect(url, ring=RING_BYTES, hello_timeout=60.0)
            assert await connection.request(b"x") == b"X"
            group.start_soon(_until_cancelled, connection)
        say("held")
        await hear()
        group.cancel_scope.cancel()


async def _until_cancelled(connection: l5.Connection) -> None:
    async with connection:
        await connection.receive()


async def ask(url: str, count: int) -> None:
    connections = [await l5.connect(url, ring=RING_BYTES, hello_timeout=60.0) for _ in range(count)]
    say("ready")
    while line := await hear():
        seconds, asked = float(line), 0

        async def work(connection: l5.Connection, end: float) -> None:
            nonlocal asked
            while time.monotonic() < end:
                for _ in range(100):
                    await connection.request(b"x" * 64)
                asked += 100

        async with anyio.create_task_group() as group:
            for connection in connections:
                group.start_soon(work, connection, time.monotonic() + seconds)
        say(asked)
    for connection in connections:
        await connection.aclose()


# ---- the measurement


class Process:
    """One of the processes above."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid: int = process.pid
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def says(self) -> str:
        line = self._output.readline()
        if not line:
            raise RuntimeError("a process of the benchmark has ended; see standard error")
        return line.strip()

    def tell(self, text: object) -> None:
        self._input.write(f"{text}\n")
        self._input.flush()


@contextmanager
def process(*words: str) -> Generator[Process]:
    command = [sys.executable, "-m", "benchmarks.crowd", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        try:
            yield Process(started)
        finally:
            assert started.stdin is not None
            started.stdin.close()


def phase(server: Process, asker: Process, seconds: float) -> dict[str, float]:
    """Let the busy connections ask; return what it cost the server."""
    before = Facts.of(server.pid)
    asker.tell(seconds)
    asked = int(asker.says())
    after = Facts.of(server.pid)
    return {
        "requests_per_s": asked / seconds,
        "cpu_us_per_request": (after.cpu_ns - before.cpu_ns) / asked / 1000,
        "sleeps_per_request": (after.sleeps - before.sleeps) / asked,
    }


def measure(url: str, connections: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Return the figures for a server at `url`."""
    with ExitStack() as stack:
        server = stack.enter_context(process("serve", url))
        url = server.says()
        asker = stack.enter_context(process("ask", url, str(BUSY)))
        asker.says()
        alone = [phase(server, asker, seconds) for _ in range(rounds)]
        small = Facts.of(server.pid)
        shares = [(connections - BUSY + i) // HOLDERS for i in range(HOLDERS)]
        holders = [stack.enter_context(process("hold", url, str(n))) for n in shares if n]
        for holder in holders:
            holder.says()
        large = Facts.of(server.pid)
        time.sleep(seconds)
        idle = Facts.of(server.pid)
        crowded = [phase(server, asker, seconds) for _ in range(rounds)]
    more = connections - BUSY
    return {
        "connections": connections,
        "idle_cpu_ns_per_s": (idle.cpu_ns - large.cpu_ns) / seconds,
        "idle_sleeps": idle.sleeps - large.sleeps,
        "fds_per_connection": (large.fds - small.fds) / more,
        "mappings_per_connection": (large.mappings - small.mappings) / more,
        "anonymous_kib_per_connection": (large.anonymous_kib - small.anonymous_kib) / more,
        "shared_kib_per_connection": (large.shared_kib - small.shared_kib) / more,
        f"{BUSY} of {BUSY}": alone,
        f"{BUSY} of {connections}": crowded,
    }


def main() -> None:
    roles: dict[str, Callable[..., Awaitable[None]]] = {"serve": serve, "hold": hold, "ask": ask}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        role, url, *count = sys.argv[1:]
        anyio.run(roles[role], url, *map(int, count))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: shows that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.connections, chosen.seconds, chosen.rounds = 100, 0.2, 1
    with tempfile.TemporaryDirectory() as path:
        for transport in ("shm", "unix"):
            url = f"l5+unix://{path}/s?transports={transport}"
            figures = measure(url, chosen.connections, chosen.seconds, chosen.rounds)
            print(json.dumps({"transport": transport, **figures}))


if __name__ == "__main__":
    main()
