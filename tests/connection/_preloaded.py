"""Programs that run with a library of ours before the C library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def compiled(name: str, folder: Path, *options: str) -> str:
    """Compile ``tests/native/c/NAME.c`` to be preloaded; return where it is."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler: install gcc or clang"
    library = folder / f"{name}.so"
    source = ROOT / "tests" / "native" / "c" / f"{name}.c"
    flags = ["-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, *options, source, "-o", library, "-ldl"], check=True)
    return str(library)


def told_by(library: str, *arguments: str) -> str:
    """Run Python with the arguments behind `library`; return what it printed."""
    done = subprocess.run(
        ["env", f"LD_PRELOAD={library}", sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
