"""The C core by itself, plain and under sanitizers: the program in `c/`, built and run."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "catfish_app" / "native"
L5_NATIVE = ROOT / "l5" / "native"
FLAGS = [
    *("-std=gnu11", "-g", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
    "-fno-omit-frame-pointer",
]
VARIANTS = {
    "plain": ["-O3"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
pytestmark = [pytest.mark.sanitizer, pytest.mark.checkout]


def core_sources() -> list[Path]:
    """All of the tree but Python's part; the AVX-512 kernel comes emulated."""
    left_out = {"rt_python.c", "rt_kernel_avx512.c"}
    return [path for path in sorted(NATIVE.glob("rt_*.c")) if path.name not in left_out]


class Programs:
    """Builds each variant once, when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, variant: str, *arguments: str) -> str:
        program = self.folder / f"tree_{variant}"
        if not program.exists():
            build(variant, program)
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        if done.returncode == 77:
            pytest.skip(f"this processor has no AVX: {done.stdout}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(variant: str, program: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler: install gcc or clang"
    sources = [*core_sources(), *sorted((HERE / "c").glob("*.c"))]
    command = [
        compiler,
        *FLAGS,
        *VARIANTS[variant],
        f"-I{NATIVE}",
        f"-I{L5_NATIVE}",
        *map(str, sources),
    ]
    done = subprocess.run(
        [*command, "-o", str(program), "-lm", "-pthread"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
def test_random_operations_agree_with_a_list(programs: Programs, seed: str) -> None:
    assert "12000 steps" in programs.run("address", "model", seed, "12000")


@pytest.mark.parametrize("variant", ["plain", "address"])
def test_kernels_build_the_same_tree(programs: Programs, variant: str) -> None:
    assert "agree" in programs.run(variant, "agree", "5", "6")


@pytest.mark.parametrize("variant", ["plain", "address"])
def test_a_view_of_memory_that_others_own(programs: Programs, variant: str) -> None:
    assert "refused" in programs.run(variant, "view", "9", "12")


@pytest.mark.parametrize(("variant", "rounds"), [("plain", "60"), ("address", "20")])
def test_walks_through_copies(programs: Programs, variant: str, rounds: str) -> None:
    assert "found" in programs.run(variant, "walk", "3", rounds)


@pytest.mark.parametrize("kernel", ["portable", "avx2"])
@pytest.mark.parametrize(
    ("variant", "operations"), [("plain", "300000"), ("address", "30000"), ("thread", "12000")]
)
def test_readers_and_writers(
    programs: Programs, variant: str, operations: str, kernel: str
) -> None:
    assert "rounds of reads" in programs.run(variant, "threads", kernel, operations)
