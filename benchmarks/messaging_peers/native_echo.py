"""Build a handler in C, as somebody outside would."""

import shutil
import subprocess
from pathlib import Path

import l5

HEADERS = Path(l5.__file__).parent / "native"


class Unavailable(Exception):
    """It cannot be built here; the message says what to install."""


def build(folder: str, name: str = "echo") -> str:
    """Return the path of the library, made in `folder` of the file of that name beside this one."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("no C compiler: install gcc or clang")
    source, out = Path(__file__).with_name(f"{name}.c"), Path(folder) / f"{name}.so"
    flags = ["-std=c11", "-O2", "-shared", "-fPIC", f"-I{HEADERS}"]
    done = subprocess.run(
        [compiler, *flags, str(source), "-o", str(out)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"building {source} failed:\n{done.stderr}")
    return str(out)
