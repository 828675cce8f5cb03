"""What a request takes of one end, other than instructions: calls, system calls, lines, samples."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._harness import Row

ENDS = Path(__file__).with_name("_profile_ends.py")
LIMIT_S = 300
SAMPLES_PER_S = 60
SAMPLED_S = 20
WARM_S = 1.0
SYSTEM_CALL = re.compile(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$")
LAYOUT = """
#include <stdio.h>
#include "channel.h"
int main(void) { printf("%llu", (unsigned long long)l5_padded(64) / 64); return 0; }
"""
IN_C = re.compile(r"\((l5/native/|[^()]*_native\.)")
WAITING = re.compile(r"^\w*(spin|poll_times|yield|wait)\w* \(")
ASLEEP = re.compile(r"^(__)?epoll_(p?wait|wait)")
LAYERS = (
    ("waiting for the other end, in l5's C", IN_C),
    ("epoll_wait", ASLEEP),
    ("messages, in l5's C", IN_C),
    ("l5's Python", re.compile(r"\([^()]*\bl5/[\w/]*\.py")),
    ("the program", re.compile(r"_profile_ends\.py")),
    ("event loop and anyio", re.compile(r"\([^()]*(asyncio|anyio|trio|selectors|_asynciomodule)")),
    ("others", re.compile(r"")),
)
"""Whose a sample is: that of the innermost frame that is anybody's.  What the interpreter, the C
library and the kernel do counts to whoever has them do it."""


class Pair:
    """Both ends as processes: one is looked at, the other one runs as usual."""

    def __init__(self, tree: Path, folder: str, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "PYTHONPATH": str(tree)}
        self._tree = tree
        self._url = f"l5+unix://{folder}/s"

    def _start(
        self, role: str, argument: str, before: Sequence[str], counts: str
    ) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-P", str(ENDS), role, self._url, argument]
        if counts:
            command.append(counts)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._tree,
            env=self._environment,
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            process.kill()
            process.communicate()
            raise RuntimeError(f"the {role} of {self._tree} did not start")
        return process

    def run(
        self, counted: str, requests: int, before: Sequence[str] = (), counts: str = ""
    ) -> None:
        """Let the client ask so often, with `before` in front of the command of one end."""
        server = self._start("server", "0", *self._of("server", counted, before, counts))
        try:
            client = self._start(
                "client", str(requests), *self._of("client", counted, before, counts)
            )
            try:
                if client.wait(LIMIT_S):
                    raise RuntimeError(f"the client of {self._tree} failed")
            finally:
                client.kill()
                client.communicate()
            server.communicate(b"\n", timeout=LIMIT_S)
        finally:
            server.kill()
            server.communicate()

    @staticmethod
    def _of(
        role: str, counted: str, before: Sequence[str], counts: str
    ) -> tuple[Sequence[str], str]:
        return (before, counts) if role == counted else ((), "")

    def watch(self, counted: str, look: Callable[[int], None]) -> None:
        """Call `look` with the process of one end, while the client asks without end."""
        server = self._start("server", "0", (), "")
        try:
            client = self._start("client", "0", (), "")
            try:
                time.sleep(WARM_S)
                look((server if counted == "server" else client).pid)
            finally:
                client.kill()
                client.communicate()
        finally:
            server.kill()
            server.communicate()


def interpreter(pair: Pair, role: str, few: int, many: int) -> Iterator[Row]:
    """Yield byte codes and calls a request."""
    found: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
        for count in (few, many):
            counts = Path(folder, str(count))
            pair.run(role, count, counts=str(counts))
            found.append(json.loads(counts.read_text()))
    for name, value in found[1].items():
        row = {"case": "profile/calls", "end": role, "part": name, "unit": "a request"}
        yield {**row, "value": round((value - found[0][name]) / (many - few), 2)}


def system_calls(pair: Pair, role: str, few: int, many: int) -> Iterator[Row]:
    """Yield the system calls a request, by name, as strace counts them."""
    found: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
        for count in (few, many):
            out = Path(folder, str(count))
            pair.run(role, count, ["strace", "-f", "-c", "-o", str(out)])
            found.append(parse_strace(out.read_text()))
    names = sorted({*found[0], *found[1]})
    each = {n: (found[1].get(n, 0) - found[0].get(n, 0)) / (many - few) for n in names}
    row = {"case": "profile/system calls", "end": role, "unit": "a request"}
    for name, value in each.items():
        if value >= 0.005:
            yield {**row, "part": name, "value": round(value, 3)}
    yield {**row, "part": "all", "value": round(sum(each.values()), 3)}


def parse_strace(text: str) -> dict[str, int]:
    """Return the calls by name from the table that ``strace -c`` writes."""
    matches = (SYSTEM_CALL.match(line) for line in text.splitlines())
    return {match[2]: int(match[1]) for match in matches if match and match[2] != "total"}


def lines(tree: Path) -> Iterator[Row]:
    """Yield the cache lines of a message by the layout that the tree's header has."""
    compiler = shutil.which("gcc") or shutil.which("clang") or "gcc"
    with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
        program = Path(folder, "layout")
        source = program.with_suffix(".c")
        source.write_text(LAYOUT)
        include = str(tree / "l5" / "native")
        subprocess.run([compiler, "-std=gnu11", "-I", include, source, "-o", program], check=True)
        told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    row = {"case": "profile/lines", "end": "both", "unit": "cache lines"}
    yield {**row, "part": "a message of 64 bytes", "value": int(told)}
    yield {**row, "part": "moved for a request and its answer", "value": 2 * int(told)}


def samples(pair: Pair, role: str) -> Iterator[Row]:
    """Yield what share of an end's time goes where, as py-spy samples it."""
    with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
        out = Path(folder, "raw")
        how = [
            "--native",
            "-f",
            "raw",
            "-r",
            str(SAMPLES_PER_S),
            "-d",
            str(SAMPLED_S),
            "-o",
            str(out),
        ]

        def look(pid: int) -> None:
            done = subprocess.run(
                ["py-spy", "record", "-p", str(pid), *how], capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"py-spy failed: {done.stderr}")

        pair.watch(role, look)
        found = by_layer(out.read_text())
    total = max(1, sum(found.values()))
    row = {"case": "profile/samples", "end": role, "unit": "share"}
    for layer, count in found.items():
        yield {**row, "part": layer, "value": round(count / total, 4), "samples": count}


def by_layer(raw: str) -> dict[str, int]:
    """Sum up the samples of py-spy's raw format, a stack and its count a line."""
    sums = {layer: 0 for layer, _ in LAYERS}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        sums[layer_of(stack.split(";"))] += int(count)
    return sums


def layer_of(stack: Sequence[str]) -> str:
    """Return whose time it was, of frames from the outermost one to the innermost one."""
    if ASLEEP.match(stack[-1]):
        return "epoll_wait"
    for at, frame in reversed(list(enumerate(stack))):
        if IN_C.search(frame):
            while at and IN_C.search(stack[at - 1]):
                at -= 1
            waits = any(WAITING.match(inner) for inner in stack[at:])
            return LAYERS[0][0] if waits else LAYERS[2][0]
        for layer, pattern in LAYERS[3:-1]:
            if pattern.search(frame):
                return layer
    return LAYERS[-1][0]
