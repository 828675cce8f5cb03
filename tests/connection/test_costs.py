"""On shared memory, with the peer awake: no system call, one call into C, one copy each way."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from l5 import native
from tests.connection import _costs
from tests.connection._preloaded import ROOT, compiled

pytestmark = [
    pytest.mark.bare,
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.skipif(
        platform.machine() not in _costs.WRITE, reason="the filter knows x86-64 and arm64"
    ),
]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.connection._costs", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("case", list(_costs.CASES))
def test_no_system_call_and_one_call_into_c(case: str) -> None:
    done = run(case)
    if done.returncode == 77:
        pytest.skip(f"this kernel has no seccomp filters: {done.stdout}")
    # The process is killed by its own exit, which is a system call; before, it has told.
    assert "calls into C each" in done.stdout, f"killed by a system call\n{done.stderr}"
    calls = float(done.stdout.split()[0])
    # A server's loop is one call for all; a reservation is two and here its answer is a third.
    assert calls == {"answer": 1.0, "reserve": 3.0}.get(case, 1.0)


def test_the_filter_kills() -> None:
    program = "from tests.connection import _costs; _costs.forbid_system_calls(); open('/')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode < 0


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("ring_copies", tmp_path_factory.mktemp("copies"), "-fno-builtin")


@pytest.mark.checkout
@pytest.mark.parametrize(
    ("case", "copies"),
    [
        *(("request", 2), ("send", 1), ("receive", 1), ("into", 1), ("answer", 2)),
        *(("reserve", 0), ("lease", 0)),
    ],
)
def test_copies(counter: str, case: str, copies: int) -> None:
    """One in and one out; none in place.  Counted where they are made: in memcpy."""
    done = run(case, "count", LD_PRELOAD=counter)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) == copies
