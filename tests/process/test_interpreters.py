"""Subinterpreters, and a Python without the GIL: a clear no, and never a crash."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from l5 import _interpreter

ROOT = Path(__file__).parent.parent.parent

IN_SUBINTERPRETERS = """
import sys
try:
    import _interpreters as interpreters
    kinds = ["isolated", "legacy"]
except ImportError:
    import _xxsubinterpreters as interpreters
    kinds = [True, False]
for first in (False, True):
    if first:
        import l5  # in the main interpreter
    for kind in kinds:
        if isinstance(kind, str):
            number = interpreters.create(kind)
        else:
            number = interpreters.create(isolated=kind)
        interpreters.run_string(number, '''
import sys
sys.path[:] = %r
for name in ("l5", "l5.native", "l5._native", "l5"):
    try:
        __import__(name)
    except ImportError as error:
        assert "l5 cannot be used in a subinterpreter" in str(error), str(error)
        assert "use a process, or a thread" in str(error), str(error)
    else:
        raise AssertionError(name)
print("refused", flush=True)
''' % sys.path)
        interpreters.destroy(number)
import anyio, tempfile
async def main():
    async def echo(payload): return payload
    with tempfile.TemporaryDirectory() as path:
        async with l5.serve(echo, f"l5+unix://{path}/s") as server:
            async with await l5.connect(server.urls[0]) as client:
                print((await client.request(b"sound")).decode())
anyio.run(main)
"""

WITHOUT_GIL = """
import sys
sys._is_gil_enabled = lambda: False
import anyio, l5, l5.native, tempfile
assert not l5.native.available
assert "l5._native" not in sys.modules and "_cffi_backend" not in sys.modules
async def main():
    async def echo(payload): return payload
    with tempfile.TemporaryDirectory() as path:
        async with l5.serve(echo, f"l5+unix://{path}/s") as server:
            async with await l5.connect(server.urls[0]) as client:
                assert await client.request(b"x") == b"x"
                print(client.upgrade_report)
            try:
                await l5.connect(f"l5+shm://{path}/s")
            except l5.ConnectError as error:
                print(error)
for backend in ("asyncio", "trio"):
    anyio.run(main, backend=backend)
"""


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_a_subinterpreter_is_refused_and_the_main_one_goes_on() -> None:
    assert run(IN_SUBINTERPRETERS) == ["refused"] * 4 + ["sound"]


def test_without_the_gil_the_sockets_work_and_the_report_says_why() -> None:
    lines = run(WITHOUT_GIL)
    assert len(lines) == 4
    for line in lines:
        assert "this Python runs without the GIL" in line
        assert "PYTHON_GIL=1" in line
    assert lines[0].startswith("unix")


def test_with_the_gil_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert _interpreter.gil_missing() is None
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert "without the GIL" in str(_interpreter.gil_missing())


def test_where_nothing_tells_the_interpreters_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython does not promise those modules: without them l5 loads."""
    for name in _interpreter._MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    _interpreter.refuse_subinterpreter()
    fake = types.SimpleNamespace(get_current=lambda: (1, 3), get_main=lambda: (0, 1))
    monkeypatch.setitem(sys.modules, _interpreter._MODULES[0], fake)
    with pytest.raises(ImportError, match="cannot be used in a subinterpreter"):
        _interpreter.refuse_subinterpreter()
