"""A transport of somebody else's passes the suite, installed, through its own entry point."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_transport"
pytestmark = [pytest.mark.checkout, pytest.mark.slow]


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_the_example_installed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(
        EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg*")
    )
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    run([*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)])
    (source / "l5_packet.py").unlink()  # what is tested is what was installed
    listed = run(["-m", "l5", "info"], PYTHONPATH=str(target))
    assert "packet" in listed
    suite = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:asyncio"]
    options = ["-W", "error", "--timeout", "60", "--rootdir", str(source)]
    told = run([*suite, *options, str(source / "test_packet.py")], PYTHONPATH=str(target))
    passed = int(told.rsplit(" passed", 1)[0].rsplit(None, 1)[-1])
    assert passed >= 150, told
    assert "skipped" not in told
