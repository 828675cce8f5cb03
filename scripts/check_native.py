"""Compile all C with each compiler here, warnings as errors; build nothing that is kept.

    python scripts/check_native.py [--require gcc,clang]

Two passes a compiler: each hand-written file alone under the strictest flags, then the whole
extensions as setup.py builds them (cffi's generated wrappers included). Where a cross compiler for
arm64 is installed (Debian: gcc-aarch64-linux-gnu), the files that do not know Python are compiled
for it too, so that nothing assumes x86. A compiler named by --require must be there.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("l5/native", "catfish_app/native")
COMPILERS = ("gcc", "clang")
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
STRICT = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC"]


def run(command, environment=None):
    """Run a command in the repository; end with its output if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\ncheck_native: failed: {' '.join(map(str, command))}")


def knows_python(path):
    """Tell whether a C file includes CPython's headers, perhaps by a header beside it."""
    text = path.read_text()
    beside = [path.with_name(name) for name in re.findall(r'^#include "(\S+)"', text, re.MULTILINE)]
    return "#include <Python.h>" in text or any(
        knows_python(header) for header in beside if header.exists()
    )


def compile_files(compiler, files):
    """Compile each file alone; the objects are thrown away."""
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            python = [f"-I{headers}"] if knows_python(path) else []
            includes = [f"-I{path.parent}", f"-I{ROOT / 'l5/native'}", *python]
            run([compiler, *STRICT, *includes, "-c", path, "-o", Path(folder, "out.o")])
    print(f"{compiler}: {len(files)} files without a warning")


def build_extensions(compiler):
    """Build the extensions into a temporary folder, as an installation would."""
    environment = {
        **os.environ,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "L5_WERROR": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--force"]
        run([*command, "--build-lib", folder, "--build-temp", folder], environment)
        built = sorted(path.name for path in Path(folder).rglob("*.so"))
    if len(built) != len(FOLDERS):
        sys.exit(f"check_native: {compiler} built {built}, expected {len(FOLDERS)} extensions")
    print(f"{compiler}: {len(built)} extensions without a warning")


def main():
    parser = argparse.ArgumentParser(description="Compile all C, warnings as errors.")
    parser.add_argument("--require", default="", help="compilers that must be there: gcc,clang")
    required = [name for name in parser.parse_args().require.split(",") if name]
    missing = [name for name in required if shutil.which(name) is None]
    if missing:
        sys.exit(f"check_native: {', '.join(missing)} missing; install it with apt-get")
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.c"))
    for compiler in filter(shutil.which, COMPILERS):
        compile_files(compiler, files)
        build_extensions(compiler)
    if shutil.which(CROSS_COMPILER):
        compile_files(CROSS_COMPILER, [path for path in files if not knows_python(path)])


if __name__ == "__main__":
    main()
