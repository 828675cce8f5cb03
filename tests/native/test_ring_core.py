"""The ring's C by itself, plain and under sanitizers: `c/ring_main.c`, built and run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "l5" / "native"
SOURCES = [NATIVE / "channel.c", NATIVE / "segment.c", NATIVE / "wait.c", HERE / "c/ring_main.c"]
FLAGS = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-omit-frame-pointer"]
VARIANTS = {
    "plain": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
pytestmark = [pytest.mark.sanitizer, pytest.mark.checkout]


class Programs:
    """Builds each variant once, when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, variant: str, *arguments: str) -> str:
        program = self.folder / f"ring_{variant}"
        if not program.exists():
            compiler = shutil.which("gcc") or shutil.which("clang")
            assert compiler, "no C compiler: install gcc or clang"
            command = [compiler, *FLAGS, *VARIANTS[variant], f"-I{NATIVE}", *map(str, SOURCES)]
            built = subprocess.run(
                [*command, "-o", str(program)], capture_output=True, text=True, check=False
            )
            assert built.returncode == 0, built.stderr
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("ring"))


@pytest.mark.parametrize("variant", ["plain", "address"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_both_ends_at_random_against_a_queue(programs: Programs, variant: str, seed: int) -> None:
    count = 100_000 if variant == "plain" else 30_000
    messages = int(programs.run(variant, "random", str(seed), str(count)).split()[0])
    assert messages > count // 20


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("seed", [1, 2])
def test_two_threads_as_the_two_ends(programs: Programs, variant: str, seed: int) -> None:
    count = 20_000 if variant == "plain" else 4_000
    sleeps, bells = programs.run(variant, "threads", str(seed), str(count)).split(",")
    assert int(sleeps.split()[0]) > 0, "nobody ever slept: the doorbell was not tested"
    assert int(bells.split()[0]) > 0


@pytest.mark.parametrize("variant", ["plain", "address"])
def test_lies_are_not_believed(programs: Programs, variant: str) -> None:
    assert programs.run(variant, "lies") == "no lie was believed\n"


@pytest.mark.parametrize("variant", ["plain", "address"])
def test_a_leased_message_is_not_met_again(programs: Programs, variant: str) -> None:
    assert programs.run(variant, "leases") == "no message came twice\n"


@pytest.mark.parametrize("variant", ["plain", "address"])
def test_memory_that_must_not_be_taken(programs: Programs, variant: str) -> None:
    reasons = programs.run(variant, "segments").splitlines()
    assert len(reasons) == 11
    assert len(set(reasons)) >= 6


def test_leaving_a_cpu_takes_nobodys_wishes_away(tmp_path: Path) -> None:
    program = tmp_path / "leave_cpu"
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler: install gcc or clang"
    sources = [HERE / "c/leave_cpu.c", NATIVE / "channel.c", NATIVE / "segment.c"]
    command = [compiler, *FLAGS, *VARIANTS["address"], f"-I{NATIVE}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
