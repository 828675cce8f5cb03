"""Where the instructions of a request go: ``python -m benchmarks profile``.

Callgrind counts every instruction of a process, the interpreter's included, and knows no clock.
Each end in turn runs under it while the other runs as usual: once for a few requests and once for
many.  The difference, divided by the requests in between, is one request without any of the start.
Both ends live by a slower clock (slow_clock.c; a C compiler is needed), so that what goes by time
is no more frequent for being counted.  What the kernel does is not counted, and the part that waits
depends on how long the other end took: the others are nearly the same on a busy machine.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

import l5
from benchmarks._harness import Row

PAYLOAD = bytes(range(64))
WARM = 256
REQUESTS = 2048
CLOCK = Path(__file__).with_name("slow_clock.c")
TOP = 12
LIMIT_S = 300
ROOT = Path(__file__).resolve().parents[1]

Function = tuple[str, str]
"""The file a function is in (a library, a program) and its name."""

NAMED = re.compile(r"(c?)(fn|ob)=\((\d+)\)(?: (.*))?")
PARTS = (
    (
        "l5's C: waiting for the other end",
        r"/_native\.|slow_clock",
        r"spin|wait|yield|now|news|clock",
    ),
    ("l5's C: messages", r"/_native\.", r""),
    ("memory: objects made and freed", r"", r"[mcae]lloc|[fF]ree|dealloc|New|_GC_"),
    ("libc: copies, and around system calls", r"/libc[.-]", r""),
    ("interpreter: byte codes", r"", r"^_PyEval_EvalFrame"),
    ("interpreter: calls, coroutines", r"", r"[vV]ector[cC]all|Frame|_Call|_PyEval|[gG]en_|_Send"),
    ("interpreter: the rest", r"python", r""),
    ("others", r"", r""),
)
"""What a function counts to: the first whose file and name fit."""


async def echo(request: bytes) -> bytes:
    """Answer with the request itself."""
    return request


async def serve(url: str, ready: int) -> None:
    """Serve until standard input ends."""
    async with l5.serve(echo, url, hello_timeout=60.0):
        os.write(ready, b"R")
        os.close(ready)
        await anyio.to_thread.run_sync(os.read, 0, 1)


async def ask(url: str, count: int) -> None:
    """Send so many requests, one after another."""
    limits = {"connect_timeout": 60.0, "hello_timeout": 60.0}
    async with await l5.connect(url, **limits) as connection:
        if connection.transport != "shm":
            raise RuntimeError(f"meant to count shared memory: {connection.upgrade_report}")
        for _ in range(count):
            await connection.request(PAYLOAD)


def compile_clock(folder: Path) -> Path:
    """Make the library that is preloaded."""
    library = folder / "slow_clock.so"
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("benchmarks: profile needs a C compiler: install gcc or clang")
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([compiler, *options, CLOCK, "-o", library], check=True)
    return library


def run_pair(folder: str, clock: Path, counted: str, count: int) -> dict[Function, int]:
    """Let a client ask so often with one end under callgrind; return what that end executed."""
    out = Path(folder, f"{counted}-{count}.out")
    url = f"l5+unix://{folder}/s"
    callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "-q"]
    end = [sys.executable, "-m", "benchmarks", "profile", "--end"]
    ends = {
        role: [*(callgrind if role == counted else []), *end, role] for role in ("server", "client")
    }
    reading, writing = os.pipe()
    slowly = {**os.environ, "LD_PRELOAD": str(clock)}
    command = [*ends["server"], url, str(writing)]
    with subprocess.Popen(
        command, pass_fds=[writing], stdin=subprocess.PIPE, cwd=ROOT, env=slowly
    ) as server:
        os.close(writing)
        try:
            if os.read(reading, 1) != b"R":
                raise RuntimeError("the server did not start")
            client = [*ends["client"], url, str(count)]
            subprocess.run(client, cwd=ROOT, env=slowly, check=True, timeout=LIMIT_S)
            server.communicate(b"\n", timeout=LIMIT_S)
        finally:
            os.close(reading)
            server.kill()
    return instructions(out.read_text())


def instructions(callgrind: str) -> dict[Function, int]:
    """Return what each function executed by itself, from the text of a profile."""
    names: dict[str, dict[str, str]] = {"fn": {}, "ob": {}}
    at = {"fn": "", "ob": ""}
    own: dict[Function, int] = {}
    of_callee = False
    for line in callgrind.splitlines():
        if match := NAMED.match(line):
            called, kind, number, name = match.groups()
            if name is not None:
                names[kind][number] = name
            if not called:
                at[kind] = names[kind][number]
        elif line.startswith("calls="):
            of_callee = True
        elif re.match(r"[\d+*-]", line):
            if not of_callee:  # the line behind `calls=` is what the callee took
                where = at["ob"], at["fn"]
                own[where] = own.get(where, 0) + int(line.rsplit(" ", 1)[1])
            of_callee = False
    return own


def per_request(
    few: Mapping[Function, int], many: Mapping[Function, int], requests: int
) -> dict[Function, float]:
    """Return what each of the requests that one run has more took of each function."""
    return {key: (many.get(key, 0) - few.get(key, 0)) / requests for key in {*few, *many}}


def part_of(file: str, name: str) -> str:
    """Return what a function counts to."""
    fits = (p for p, where, like in PARTS if re.search(where, file) and re.search(like, name))
    return next(fits)


def by_part(counts: Mapping[Function, float]) -> dict[str, float]:
    """Sum up the functions of each of `PARTS`."""
    sums = {part: 0.0 for part, _, _ in PARTS}
    for (file, name), count in counts.items():
        fits = (
            p for p, in_file, like in PARTS if re.search(in_file, file) and re.search(like, name)
        )
        sums[next(fits)] += count
    return sums


def rows_of(role: str, counts: Mapping[Function, float]) -> Iterator[Row]:
    """Yield the rows of one end: its parts, their sum, and the functions that took most."""
    row = {"case": "profile/request", "end": role, "unit": "instructions"}
    for part, count in by_part(counts).items():
        yield {**row, "part": part, "value": round(count, 1)}
    yield {**row, "part": "all", "value": round(sum(counts.values()), 1)}
    most = sorted(counts.items(), key=lambda item: -item[1])[:TOP]
    for (file, name), count in most:
        yield {**row, "function": name, "file": Path(file).name, "value": round(count, 1)}


def run(requests: int) -> Iterator[Row]:
    """Profile both ends."""
    for role in ("client", "server"):
        with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
            clock = compile_clock(Path(folder))
            few = run_pair(folder, clock, role, WARM)
            many = run_pair(folder, clock, role, WARM + requests)
        yield from rows_of(role, per_request(few, many, requests))


def main(arguments: Sequence[str]) -> int:
    """Print the rows; return what the process exits with."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks profile", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--requests", metavar="N", type=int, default=REQUESTS)
    parser.add_argument("--end", nargs=3, help=argparse.SUPPRESS)
    given: Any = parser.parse_args(arguments)
    if given.end:
        role, url, argument = given.end
        anyio.run(serve if role == "server" else ask, url, int(argument))
        return 0
    if given.requests < 1:
        parser.error(f"--requests must be at least 1, not {given.requests}")
    if not shutil.which("valgrind"):
        print("benchmarks: profile needs valgrind: install it (Debian: valgrind)", file=sys.stderr)
        return 1
    lines: list[str] = []
    for row in run(given.requests):
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
    if given.json:
        given.json.write_text("".join(f"{line}\n" for line in lines))
    return 0
