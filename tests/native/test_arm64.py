"""The C cores compiled for arm64 and run in an emulator: they assume nothing of x86.

It proves portability and not ordering: the emulator runs every access on this machine's processor,
in the order of this machine's processor.  That is even weaker than arm64 in one place: QEMU puts no
barrier between a `stlr` and the `ldar` behind it, which arm64 keeps in order and x86 does not keep
for the plain store and load that become of them (two threads that each store and then load the
other's word both read 0 in 3 % of the rounds, and never with a `dmb` in between).  That pair is the
doorbell, so wake-ups would be lost.  On one CPU threads see each other's stores in order, so there
they are run.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
L5 = ROOT / "l5" / "native"
TREE = ROOT / "catfish_app" / "native"
TESTS = ROOT / "tests"
EM_AARCH64 = 183
COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
FLAGS = ["-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-static"]

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(
        COMPILER is None,
        reason="no compiler for arm64: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross",
    ),
    pytest.mark.skipif(
        EMULATOR is None and platform.machine() != "aarch64",
        reason="no emulator of arm64: install qemu-user",
    ),
]


def sources(program: str) -> list[Path]:
    """List the C files of one test program: the core without Python, and the program itself."""
    ring = [L5 / name for name in ("channel.c", "segment.c", "wait.c")]
    tree = [path for path in sorted(TREE.glob("rt_*.c")) if path.name != "rt_python.c"]
    match program:
        case "ring_main":
            return [*ring, TESTS / "native" / "c" / "ring_main.c"]
        case "service_protocol" | "service_stress":
            service = sorted(L5.glob("service*.c"))
            return [*ring, *service, TESTS / "native" / "c" / f"{program}.c"]
        case "page_threads":
            return [TESTS / "pages" / "c" / "page_threads.c"]
        case "tree_main":
            plain = [path for path in tree if path.name != "rt_kernel_avx512.c"]
            return [*plain, *sorted((TESTS / "rtree" / "c").glob("*.c"))]
        case _:
            handler = sorted(TREE.glob("service_*.c"))
            return [*tree, *handler, TESTS / "catfish" / "c" / "service_main.c"]


def built(program: str, folder: Path) -> Path:
    """Compile a program for arm64, once."""
    target = folder / program
    if not target.exists():
        includes = [f"-I{path}" for path in (L5, TREE, TESTS / "native" / "c")]
        files = sources(program)
        command = [str(COMPILER), *FLAGS, *includes, *files, "-o", target, "-lm", "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        machine = int.from_bytes(target.read_bytes()[18:20], "little")
        assert machine == EM_AARCH64, f"{program} was compiled for machine {machine}, not for arm64"
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arm64")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ring_main random 1 30000", "messages"),
        ("ring_main threads 1 3000", "bells"),
        ("ring_main lies", "no lie was believed"),
        ("ring_main leases", "no message came twice"),
        ("ring_main segments emulated", "the memory has holes"),
        ("service_protocol", "ok"),
        ("service_stress", "ok"),
        ("page_threads mapped 2000", " 0 wrong"),
        ("page_threads ascending 500", " 0 wrong"),
        ("page_threads words 500", " 0 wrong"),
        ("tree_main model 1 12000", "12000 steps"),
        ("tree_main model 2 12000", "12000 steps"),
        ("tree_main agree 5 6", "agree"),
        ("tree_main threads portable 10000", "rounds of reads"),
        ("service_main fuzz 1 30000", "answered"),
        ("service_main threads 7 3000", "answered"),
    ],
)
def test_the_c_runs_on_arm64(folder: Path, command: str, said: str) -> None:
    program, *arguments = command.split()
    run = [str(built(program, folder)), *arguments]
    if EMULATOR is not None:
        run = ["taskset", "-c", str(min(os.sched_getaffinity(0))), EMULATOR, *run]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
