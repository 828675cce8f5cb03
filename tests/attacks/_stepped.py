"""The stage of a test build whose processes die at the step that the environment names.

``_stepped.py PATH MODULE...`` is `_stage.py` with two differences: comments of l5 that number a
step become code, and `l5._native` is compiled with -DL5_STEPS, where the macro L5_STEP is code.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
NATIVE = ROOT / "l5" / "native"
STEP = re.compile(r"^( *)# step (\d+) \(.*$", re.MULTILINE)
DIES = (
    r'\1__import__("os").environ.get("L5_STEP") == "\2" and '
    r'__import__("os").kill(__import__("os").getpid(), 9)'
)


class SteppedLoader(SourceFileLoader):
    """Load a module whose steps are code."""

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        return STEP.sub(DIES, data.decode()).encode() if path.endswith(".py") else data

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)  # not from the cache, and not into it
        return self.source_to_code(self.get_data(path), path)


class SteppedFinder(MetaPathFinder):
    """Find l5 as it is, and load it with its steps."""

    def __init__(self, native: Path) -> None:
        self._native = native

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "l5._native":
            return importlib.util.spec_from_file_location(fullname, self._native)
        if fullname.partition(".")[0] != "l5":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = SteppedLoader(spec.loader.name, spec.loader.path)
        return spec


def build(folder: Path) -> Path:
    """Compile the C core with its steps."""
    spec = importlib.util.spec_from_file_location("l5_build", NATIVE / "build.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    code, library = folder / "_native.c", folder / "_native.so"
    with contextlib.redirect_stdout(io.StringIO()):  # it tells what it does
        script.make_ffibuilder().emit_c_code(str(code))
    sources = [code, *(NATIVE / name for name in script.SOURCES)]
    includes = ["-I", str(NATIVE), "-I", sysconfig.get_path("include")]
    flags = ["-std=gnu11", "-O0", "-shared", "-fPIC", "-pthread", "-w", "-D_CFFI_NO_LIMITED_API"]
    command = ["cc", *flags, "-DL5_STEPS", *includes, *map(str, sources), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.meta_path.insert(0, SteppedFinder(build(Path(made))))
        from tests.attacks import _stage

        _stage.main(sys.argv[1], sys.argv[2:])
