"""The C handler by itself, under sanitizers: `c/service_main.c` built and run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "catfish_app" / "native"
FLAGS = [
    *("-std=gnu11", "-g", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
    "-fno-omit-frame-pointer",
]
VARIANTS = {
    "plain": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
pytestmark = [pytest.mark.sanitizer, pytest.mark.checkout]


def build(variant: str, program: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler: install gcc or clang"
    # Like the tests of the tree: all but Python's part, and the portable kernel where it must be.
    sources = [path for path in sorted(NATIVE.glob("*.c")) if path.name != "rt_python.c"]
    command = [compiler, *FLAGS, *VARIANTS[variant], f"-I{NATIVE}", f"-I{ROOT / 'l5' / 'native'}"]
    command += [*map(str, sources), str(HERE / "c" / "service_main.c")]
    done = subprocess.run(
        [*command, "-o", str(program), "-lm", "-pthread"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


def run(folder: Path, variant: str, *arguments: str) -> tuple[int, int]:
    program = folder / f"service_{variant}"
    if not program.exists():
        build(variant, program)
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(r"(\d+) answered, (\d+) refused", done.stdout)
    assert found, done.stdout
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("variant", ["plain", "address"])
def test_any_bytes_are_answered_or_refused(folder: Path, variant: str, seed: int) -> None:
    count = 60_000 if variant == "plain" else 20_000  # each costs three times as much there
    answered, refused = run(folder, variant, "fuzz", str(seed), str(count))
    assert answered + refused == count
    assert min(answered, refused) > count / 10  # both sides were looked at


@pytest.mark.parametrize("variant", ["plain", "thread"])
def test_threads_share_a_service(folder: Path, variant: str) -> None:
    answered, refused = run(folder, variant, "threads", "7", "8000")
    assert answered + refused == 4 * 8000
    assert min(answered, refused) > 3000


@pytest.mark.parametrize("mode", ["early", "late", "hole"])
def test_a_tree_that_could_not_be_moved_is_as_it_was(mode: str, folder: Path) -> None:
    program = folder / "share_fails"
    if not program.exists():
        left_out = {"rt_python.c", "rt_share.c"}
        sources = [path for path in sorted(NATIVE.glob("rt_*.c")) if path.name not in left_out]
        command = ["cc", *FLAGS, *VARIANTS["plain"], f"-I{NATIVE}", f"-I{ROOT / 'l5' / 'native'}"]
        command += [*map(str, sources), str(HERE / "c" / "share_fails.c"), "-o", str(program)]
        subprocess.run([*command, "-lm", "-pthread"], check=True)
    done = subprocess.run([program, mode], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
