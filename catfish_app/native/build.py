"""Build `catfish_app._native`: the R-tree and its service, in C.

Run as a script it builds in place; `setup.py` uses `ffibuilder`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
L5_NATIVE = ROOT / "l5" / "native"
HEADERS = ("rtree.h", "rt_view.h", "rt_foreign.h", "rt_walk.h", "service_handler.h")
# -ffp-contract=off: every kernel must round alike. No -march: kernels are chosen at run time.
COMPILE_ARGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread")


def sources() -> list[Path]:
    """Return the C files of the module: all but programs and tests."""
    return [
        path
        for path in sorted(HERE.glob("*.c"))
        if not path.stem.endswith("_main") and not path.stem.startswith("test_")
    ]


def declarations(header: Path) -> str:
    """Return a header as cffi takes it: without directives, but with its numeric constants."""
    lines = header.read_text().splitlines()
    kept = [
        line
        for line in lines
        if not line.startswith("#") or re.fullmatch(r"#define \w+ \d+", line.strip())
    ]
    return "\n".join(kept)


def _relative(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def make_ffibuilder() -> FFI:
    """Return the builder; the public C headers are the cdef, so they cannot drift apart."""
    builder = FFI()
    headers = [HERE / name for name in HEADERS if (HERE / name).exists()]
    for header in headers:
        builder.cdef(declarations(header))
    builder.set_source(
        "catfish_app._native",
        "".join(f'#include "{header.name}"\n' for header in headers),
        sources=[_relative(path) for path in sources()],
        depends=[
            _relative(path) for place in (HERE, L5_NATIVE) for path in sorted(place.glob("*.h"))
        ],
        include_dirs=[_relative(HERE), _relative(L5_NATIVE)],
        extra_compile_args=list(COMPILE_ARGS),
        extra_link_args=["-pthread"],
        libraries=["m"],
        # The hot calls need the full C API, hence a wheel per version of Python.
        define_macros=[("_CFFI_NO_LIMITED_API", None)],
        py_limited_api=False,
    )
    return builder


ffibuilder = make_ffibuilder()


if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True, tmpdir=str(ROOT))
