"""The C and C++ loops: built once into build/bench, fed by commands, kept alive between rounds."""

import shutil
import subprocess
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "catfish_app" / "native"
L5_NATIVE = ROOT / "l5" / "native"
BUILD = ROOT / "build" / "bench" / "rtree"


class Unavailable(Exception):
    """A peer cannot be built or run here; the message says what to install."""


def build_ours(*, every_line: bool = False) -> Path:
    """Compile our loop with the flags of the shipped module (no -march).

    With `every_line` readers look at the version of every line of a node (goal R2).
    """
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("no C compiler: install gcc or clang")
    sources = [path for path in sorted(NATIVE.glob("rt_*.c")) if path.name != "rt_python.c"]
    flags = ["-std=gnu11", "-O3", "-ffp-contract=off", "-D_GNU_SOURCE"]
    flags += [f"-I{NATIVE}", f"-I{L5_NATIVE}"]
    if every_line:
        flags += ["-include", str(HERE / "every_line.h")]
    name = "ours_loop_lines" if every_line else "ours_loop"
    return _compile([compiler, *flags, HERE / "ours_loop.c", *sources], name, ["-lm"])


def build_boost() -> Path:
    """Compile the peer; it may use all that this processor has."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise Unavailable("no C++ compiler: install g++ or clang++")
    flags = ["-std=c++17", "-O3", "-march=native", "-DNDEBUG", "-w"]
    return _compile([compiler, *flags, HERE / "boost_peer.cpp"], "boost_peer", [])


def _compile(command: list[str | Path], name: str, libraries: list[str]) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    out = BUILD / name
    done = subprocess.run(
        [*map(str, command), "-o", str(out), *libraries, "-pthread"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and "boost/geometry" in done.stderr:
        raise Unavailable("Boost.Geometry is not installed (Debian: libboost-dev)")
    if done.returncode != 0:
        raise RuntimeError(f"building {name} failed:\n{done.stderr}")
    return out


class Loop:
    """One running loop with its tree."""

    def __init__(self, program: Path, folder: Path, how: str) -> None:
        self._process = subprocess.Popen(
            [program, folder, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.build_seconds = float(self._answer())

    def run(self, what: str, scale: str, count: int) -> tuple[float, int]:
        """Return operations per second, and the number of hits."""
        assert self._process.stdin
        self._process.stdin.write(f"{what} {scale} {count}\n")
        self._process.stdin.flush()
        elapsed, hits = self._answer().split()
        return count / float(elapsed), int(hits)

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
