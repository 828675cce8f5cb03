"""Build the two C extensions; everything declarative stands in pyproject.toml.

Environment:
    L5_SANITIZE  comma-separated sanitizers for every C file: ``address,undefined`` or ``thread``
    L5_WERROR    ``1`` turns the C compiler's warnings into errors (development and CI)
"""

import os
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

CFFI_MODULES = [
    "l5/native/build.py:ffibuilder",
    "catfish_app/native/build.py:ffibuilder",
]
SOURCE_ROOT = Path(__file__).parent
KNOWN_SANITIZERS = frozenset({"address", "undefined", "thread", "leak"})


class BuildNative(build_ext):
    """Build each extension again when any C file or header beside its sources has changed."""

    def finalize_options(self):
        super().finalize_options()
        sanitizer_flags()  # a misspelt name must not wait for the first file

    def build_extension(self, ext):
        ext.depends = [*ext.depends, *native_sources()]
        ext.extra_compile_args = [*ext.extra_compile_args, *warning_flags(), *sanitizer_flags()]
        ext.extra_link_args = [*ext.extra_link_args, *sanitizer_flags()]
        super().build_extension(ext)


def native_sources():
    """List the hand-written C files, their headers and the build scripts."""
    return sorted(
        str(path)
        for package in ("l5", "catfish_app")
        for pattern in ("*.c", "*.h", "build.py")
        for path in (SOURCE_ROOT / package / "native").glob(pattern)
    )


def warning_flags():
    """Return the flags that L5_WERROR asks for.

    cffi's generated wrappers leave parameters unused and CPython's slots cast function types, so
    those two warnings of -Wextra are off.
    """
    if os.environ.get("L5_WERROR", "0") in ("", "0"):
        return []
    return ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-cast-function-type"]


def sanitizer_flags():
    """Return the flags that L5_SANITIZE asks for; refuse a name that no compiler knows."""
    names = [name for name in os.environ.get("L5_SANITIZE", "").split(",") if name]
    unknown = sorted(set(names) - KNOWN_SANITIZERS)
    if unknown:
        raise SystemExit(
            f"L5_SANITIZE={','.join(names)}: unknown sanitizer {', '.join(unknown)}; "
            f"use some of {', '.join(sorted(KNOWN_SANITIZERS))}"
        )
    if not names:
        return []
    return [f"-fsanitize={','.join(names)}", "-fno-omit-frame-pointer", "-g", "-O1"]


setup(
    cffi_modules=CFFI_MODULES,
    cmdclass={"build_ext": BuildNative},
)
