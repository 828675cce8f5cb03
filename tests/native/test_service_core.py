"""The C core of native services by itself: built plain and under the sanitizers."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE, compiler

pytestmark = pytest.mark.checkout

HERE = Path(__file__).parent / "c"
SOURCES = [
    *(NATIVE / name for name in ("channel.c", "segment.c", "wait.c")),
    *sorted(NATIVE.glob("service*.c")),
]
SANITIZERS = [
    pytest.param("", id="plain"),
    pytest.param("address,undefined", id="address", marks=pytest.mark.sanitizer),
    pytest.param("thread", id="thread", marks=pytest.mark.sanitizer),
]


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "program", ["service_protocol", "service_stress", "service_churn", "service_busy"]
)
def test_c_program(program: str, sanitizer: str, tmp_path: Path) -> None:
    target = tmp_path / program
    flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    flags += [f"-I{NATIVE}", f"-I{HERE}"]
    if sanitizer:
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    command = [compiler(), *flags, HERE / f"{program}.c", *SOURCES, "-o", target]
    subprocess.run(command, check=True)
    # It brings its own sanitizer, or none: one that was preloaded for Python would see what it
    # copies, but not what orders the copies.
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ran = subprocess.run([target], capture_output=True, text=True, timeout=540, env=alone)
    assert ran.returncode == 0 and ran.stdout == "ok\n", ran.stderr
