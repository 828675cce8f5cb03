"""The emulated machines themselves: what runs there, what comes back, what stays inside.

The first test needs nothing. The others boot a machine (8 s each) and need QEMU.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.softroce._cpio import Archive
from scripts.softroce._options import parse
from tests._imports import ROOT

pytestmark = pytest.mark.checkout

needs_machines = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None or shutil.which("busybox") is None,
    reason="QEMU is not installed (Debian: qemu-system-x86 busybox-static kmod iproute2 rdma-core)",
)


def run(*arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.softroce", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def test_an_archive_is_what_others_unpack(tmp_path: Path) -> None:
    cpio = shutil.which("cpio") or shutil.which("busybox")
    if cpio is None:
        pytest.skip("QEMU is not installed: neither cpio nor busybox is here to compare with")
    archive = Archive()
    archive.add_file("a/b/odd", b"12345", 0o755)
    archive.add_file("a/empty", b"")
    archive.add_folder("a/b/c")
    packed = archive.finish()
    assert len(packed) % 512 == 0
    applet = [cpio] if cpio.endswith("cpio") else [cpio, "cpio"]
    subprocess.run([*applet, "-id"], cwd=tmp_path, input=packed, check=True, capture_output=True)
    assert (tmp_path / "a/b/odd").read_bytes() == b"12345"
    assert os.access(tmp_path / "a/b/odd", os.X_OK)
    assert (tmp_path / "a/empty").read_bytes() == b""
    assert (tmp_path / "a/b/c").is_dir()


@pytest.mark.parametrize(
    "arguments",
    [[], ["--peer", "true", "--", "true"], ["--cwd", "/no/such/folder", "--", "true"]],
    ids=["nothing to run", "a peer without a second machine", "no such folder"],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(arguments)
    assert refused.value.code == 2


@pytest.mark.slow
@needs_machines
def test_a_machine_runs_a_command_on_an_rdma_device(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    script = (
        f"rdma link; ulimit -l; echo $WORD >&2; echo kept >$SOFTROCE_OUT/file; "
        f"mkdir -p {tmp_path}; echo lost >{outside}; cat {outside}; sleep 99 & exit 7"
    )
    out = tmp_path / "out"
    done = run("--out", str(out), "--env", "WORD=spoken", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert "link rxe0/1 state ACTIVE" in done.stdout
    assert "unlimited\nlost\n" in done.stdout
    assert "spoken" in done.stderr.splitlines()
    assert (out / "file").read_text() == "kept\n"
    assert not outside.exists(), "the machine wrote to the host"


@pytest.mark.slow
@needs_machines
def test_two_machines_reach_each_other_and_the_first_failure_counts() -> None:
    script = (
        "tries=0; until /run/softroce/busybox ping -c 1 -W 1 $SOFTROCE_PEER >/dev/null; do "
        "tries=$((tries + 1)); [ $tries -gt 30 ] && exit 1; done; "
        "echo reached; sleep 2; exit $((SOFTROCE_NODE * 4))"
    )
    done = run("--nodes", "2", "--", "sh", "-c", script)
    assert done.returncode == 4, done.stderr
    assert "[0] reached" in done.stdout and "[1] reached" in done.stdout


@pytest.mark.slow
@needs_machines
def test_a_machine_that_dies_is_not_taken_for_a_command_that_fails() -> None:
    died = run("--", "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 9")
    assert died.returncode == 125
    assert "it died while the command ran" in died.stderr
