"""Build the targets in C with clang's libFuzzer, address and undefined-behaviour sanitizers.

Objects are kept under `build/fuzz`, named by a digest of everything that went into them, so a
second build, or one with a single changed file, takes a moment.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from fuzz._targets import TARGETS, Target

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
INCLUDES = ("l5/native", "catfish_app/native", "fuzz/c")
SANITIZERS = "address,undefined"
FLAGS = (
    *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"),
    # The rings of the targets are small: what is copied as long has to fit into them.
    *("-DL5_LONG_BYTES=256u", "-DL5_QUARTERS_BYTES=512u"),
    *("-ffp-contract=off", "-pthread", f"-fsanitize=fuzzer-no-link,{SANITIZERS}"),
    *("-fno-sanitize-recover=all", *(f"-I{ROOT / name}" for name in INCLUDES)),
)


@cache
def why_not() -> str | None:
    """Say what is missing, or None: clang with libFuzzer is here and its programs run."""
    if shutil.which("clang") is None:
        return "no libFuzzer: install clang and its compiler-rt (libclang-rt-14-dev)"
    source = "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n);\n"
    source += "int LLVMFuzzerTestOneInput(const char *d, size_t n) { return d && n > 9 ? 0 : 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "probe")
        command = ["clang", "-x", "c", "-", f"-fsanitize=fuzzer,{SANITIZERS}", "-o", str(program)]
        built = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
        if built.returncode or subprocess.run([program, "-runs=1"], capture_output=True).returncode:
            return "no libFuzzer: install compiler-rt for this clang (libclang-rt-14-dev)"
    return None


@cache
def _common() -> bytes:
    """Return what every object depends on: compiler, flags, headers."""
    version = subprocess.run(["clang", "--version"], capture_output=True, check=True).stdout
    headers = sorted(path for name in INCLUDES for path in (ROOT / name).glob("*.h"))
    contents = b"\0".join(path.read_bytes() for path in headers)
    return b"\0".join((version, " ".join(FLAGS).encode(), contents))


def _compiled(source: Path, text: bytes) -> Path:
    digest = hashlib.sha256(_common() + str(source).encode() + b"\0" + text).hexdigest()[:24]
    target = BUILD / "objects" / f"{source.stem}-{digest}.o"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    command = ["clang", *FLAGS, f"-I{source.parent}", "-x", "c", "-c", "-", "-o", str(partial)]
    named = f'#line 1 "{source.relative_to(ROOT)}"\n'.encode() + text
    done = subprocess.run(command, input=named, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr.decode()}")
    partial.replace(target)
    return target


def build(target: Target, changed: Mapping[str, str] | None = None) -> Path:
    """Build a target; `changed` replaces the text of some sources, by their names."""
    texts: dict[Path, bytes] = {}
    for name in (*target.sources, f"fuzz/c/{target.name}.c"):
        path = ROOT / name
        text = (changed or {}).get(name)
        texts[path] = path.read_bytes() if text is None else text.encode()
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(_compiled, texts, texts.values()))
    digest = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:24]
    program = BUILD / "programs" / f"{target.name}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        command = ["clang", f"-fsanitize=fuzzer,{SANITIZERS}", *map(str, objects)]
        subprocess.run([*command, "-o", str(partial), "-lm", "-pthread"], check=True)
        partial.replace(program)
    return program


def build_all() -> None:
    """Build every target in C."""
    for target in TARGETS.values():
        if target.in_c:
            build(target)
