"""The plugin for pytest that is shipped with the suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from l5.testing import TransportSuite, at_every_await, interrupted


class TestUnix(TransportSuite):
    transport = "unix"

    def url(self, directory):
        return f"l5+unix://{directory}/s?transports=unix"


class TestNone(TransportSuite):
    transport = "carrier-pigeon"

    def url(self, directory):
        return "l5+carrier-pigeon://coop"
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(MODULE)
    (folder / "conftest.py").write_text(
        "from l5.testing.plugin import anyio_backend as anyio_backend"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "l5.testing.plugin"]
    alone = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", "."]
    return subprocess.run(
        [*command, *alone, "test_it.py", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def test_every_loop_and_a_reason_for_what_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "test_order or test_statistics", "--l5-require", "unix,tcp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert "6 skipped" in done.stdout
    assert "no installed package declares it" in done.stdout
    assert "warning" not in done.stdout


@pytest.mark.parametrize("name", ["carrier-pigeon"])
def test_what_is_required_must_be_there(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, "--l5-require", f"unix,{name}")
    assert done.returncode != 0
    assert f"transport '{name}' cannot be used" in done.stderr + done.stdout
