"""Compile `histogram.c` into an extension module: python build.py [FOLDER]."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import l5

HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compile into `folder`; return the module's file."""
    target = folder / f"histogram{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    includes = [f"-I{sysconfig.get_path('include')}", f"-I{l5.NativeService.include_dir()}"]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command = [*compiler, *flags, *includes, str(HERE / "histogram.c"), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE))
