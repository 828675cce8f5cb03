"""The doorbell of a channel by itself, in C, with no Python around it."""

import subprocess
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE, compiler

PROGRAMS = Path(__file__).parent.parent / "native" / "c"
SOURCES = [NATIVE / name for name in ("segment.c", "wait.c")]


SANITIZERS = [
    pytest.param("", id="plain"),
    pytest.param("address,undefined", id="address", marks=pytest.mark.sanitizer),
]


@pytest.mark.checkout
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_who_takes_the_armed_word_rings(tmp_path: Path, sanitizer: str) -> None:
    target = tmp_path / "doorbell"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}"]
    if sanitizer:
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    command = [compiler(), *flags, PROGRAMS / "doorbell.c", *SOURCES, "-o", target]
    subprocess.run(command, check=True)
    ran = subprocess.run([target], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and ran.stdout == "ok\n", ran.stderr
