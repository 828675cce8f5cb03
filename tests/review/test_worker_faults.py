"""A handler that crashes is reported like any other crash (faulthandler, core handlers)."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from l5 import NativeService, native
from tests.native import _handlers

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

CRASH = """
import faulthandler, anyio, l5, sys
faulthandler.enable()

async def main():
    service = l5.NativeService(16)  # no function stands there
    patient = {"hello_timeout": 60.0, "connect_timeout": 60.0}
    async with l5.serve(service, sys.argv[1], hello_timeout=60.0):
        connection = await l5.connect(sys.argv[1], **patient)
        await connection.request(b"x")

anyio.run(main)
"""


def blocked_by_workers() -> list[int]:
    return [
        int(line.split()[1], 16)
        for task in Path("/proc/self/task").iterdir()
        if (task / "comm").read_text().startswith("l5-worker")
        for line in (task / "status").read_text().splitlines()
        if line.startswith("SigBlk:")
    ]


@pytest.mark.anyio
async def test_faults_are_not_blocked() -> None:
    service = NativeService(_handlers.address())
    service.start()
    try:
        # The C library begins a thread with all of them blocked.
        while not (masks := blocked_by_workers()) or masks[0] >> (signal.SIGSEGV - 1) & 1:
            await anyio.sleep(0.001)
        assert len(masks) == 1
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
            assert not masks[0] >> (number - 1) & 1
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            assert masks[0] >> (number - 1) & 1
    finally:
        await service.stop()


def test_a_crash_of_a_handler_is_reported(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CRASH, f"l5+shm://{tmp_path}/s"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ran.stderr
