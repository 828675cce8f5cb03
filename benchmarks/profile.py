"""Where a request's time goes: ``python -m benchmarks profile [--by WAY,WAY] [--tree FOLDER]``.

Each end in turn is looked at while the other one runs as usual, in as many ways as are asked for:

- ``instructions``: callgrind counts every instruction of the process, the interpreter's included,
  and knows no clock; what the kernel does is not counted.
- ``calls``: byte codes, and calls of functions in Python, in C, and in l5's C, by the
  interpreter's own hooks.
- ``system-calls``: by ``strace -c``.
- ``lines``: cache lines that a message takes, by the layout of its memory.
- ``samples``: shares of the time, by py-spy with native frames (the extra ``profile``).

What is counted is counted twice, for a few requests and for many.  The difference, divided by the
requests in between, is one request without any of the start.  Where counting makes a process slow
both ends live by a slower clock (slow_clock.c; a C compiler is needed), so that what goes by time
is no more frequent for being counted.  The part that waits depends on how long the other end took:
the others are nearly the same on a busy machine.

``--tree`` profiles another checkout of l5, built there, by the same means: a state before a change.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _profile_counts as counts
from benchmarks._harness import Row

WARM = 256
REQUESTS = 2048
QUICK = 256
CLOCK = Path(__file__).with_name("slow_clock.c")
TOP = 12
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


def compile_clock(folder: Path) -> Path:
    """Make the library that is preloaded."""
    library = folder / "slow_clock.so"
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("benchmarks: profile needs a C compiler: install gcc or clang")
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([compiler, *options, CLOCK, "-o", library], check=True)
    return library


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


def count_instructions(pair: counts.Pair, role: str, few: int, many: int) -> Iterator[Row]:
    """Yield the instructions a request of one end, under callgrind."""
    found: list[dict[Function, int]] = []
    with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
        for count in (few, many):
            out = Path(folder, str(count))
            callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "-q"]
            pair.run(role, count, callgrind)
            found.append(instructions(out.read_text()))
    yield from rows_of(role, per_request(found[0], found[1], many - few))


def take_samples(pair: counts.Pair, role: str, few: int, many: int) -> Iterator[Row]:
    """Yield the shares of time of one end; they do not depend on how many are asked."""
    del few, many
    yield from counts.samples(pair, role)


Way = tuple[str, bool, Callable[[counts.Pair, str, int, int], Iterator[Row]]]
WAYS: dict[str, Way] = {
    "instructions": ("valgrind", True, count_instructions),
    "calls": ("", True, counts.interpreter),
    "system-calls": ("strace", False, counts.system_calls),
    "samples": ("py-spy", False, take_samples),
}
"""By name: the program that is needed, whether the clock has to be slow, what to do."""
HAS = {"valgrind": "Debian: valgrind", "strace": "Debian: strace", "py-spy": "pip: l5net[profile]"}


ENDS = ("client", "server")


def run(tree: Path, ways: Sequence[str], ends: Sequence[str], requests: int) -> Iterator[Row]:
    """Profile the ends of what is in `tree`."""
    if "lines" in ways:
        yield from counts.lines(tree)
    for way in (WAYS[name] for name in ways if name in WAYS):
        for role in ends:
            with tempfile.TemporaryDirectory(prefix="l5-profile-") as folder:
                slowly = {"LD_PRELOAD": str(compile_clock(Path(folder)))} if way[1] else {}
                pair = counts.Pair(tree, folder, {**os.environ, **slowly})
                yield from way[2](pair, role, WARM, WARM + requests)


def missing(ways: Sequence[str]) -> list[str]:
    """Return the programs that these ways need and that are not here."""
    needed = [WAYS[name][0] for name in ways if name in WAYS]
    return [program for program in needed if program and not shutil.which(program)]


def main(arguments: Sequence[str]) -> int:
    """Print the rows; return what the process exits with."""
    every = [*WAYS, "lines"]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--requests", metavar="N", type=int, default=REQUESTS)
    parser.add_argument(
        "--quick",
        dest="requests",
        action="store_const",
        const=QUICK,
        help=f"{QUICK} requests: shows that it runs",
    )
    parser.add_argument("--by", metavar="WAYS", default="instructions", help="or all")
    parser.add_argument("--end", choices=ENDS, action="append", help="default: both")
    parser.add_argument("--tree", metavar="FOLDER", type=Path, default=ROOT)
    given: Any = parser.parse_args(arguments)
    ways = every if given.by == "all" else given.by.split(",")
    tree: Path = given.tree.resolve()
    if unknown := [way for way in ways if way not in every]:
        parser.error(f"--by {unknown[0]}: expected some of {', '.join(every)}, or all")
    if not list((tree / "l5").glob("_native*.so")):
        parser.error(f"--tree {tree}: no built l5 is there (python l5/native/build.py)")
    if given.requests < 1:
        parser.error(f"--requests must be at least 1, not {given.requests}")
    for program in missing(ways):
        where = f"install it ({HAS[program]})"
        print(f"benchmarks: profile needs {program}: {where}", file=sys.stderr)
        return 1
    lines: list[str] = []
    for row in run(tree, ways, given.end or ENDS, given.requests):
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
    if given.json:
        given.json.write_text("".join(f"{line}\n" for line in lines))
    return 0
