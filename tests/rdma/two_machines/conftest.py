"""Tests on the first of two emulated machines: scripts/test_rdma.py boots them."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from l5.rdma import available
from tests.rdma.two_machines import peer

PEER = os.environ.get("SOFTROCE_PEER", "")
BOOT_S = 90.0
COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SOFTROCE_NODES") == "2":
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no RDMA device: needs two emulated machines"))


@pytest.fixture(scope="module", params=[pytest.param(("asyncio", {}), id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """One loop: which one it is makes no difference on the wire, and time is short here."""
    return request.param


@pytest.fixture(scope="session")
def ask() -> Callable[[str], str]:
    """Run a command on the other machine."""
    deadline = time.monotonic() + BOOT_S
    available()  # once, for its imports take seconds under emulation
    peer.be_patient()
    while True:
        try:
            control("true")
            return control
        except OSError:
            assert time.monotonic() < deadline, "the other machine does not answer"
            time.sleep(0.3)


def control(command: str) -> str:
    import socket

    with socket.create_connection((PEER, peer.CONTROL), timeout=60) as stream:
        stream.sendall(command.encode() + b"\n")
        answer = b""
        while piece := stream.recv(4096):
            answer += piece
    status, _, output = answer.decode().partition(" ")
    assert status == "0", f"{command}: {output}"
    return output.strip()


def here(command: str) -> None:
    """Run a command on this machine."""
    subprocess.run(["/bin/sh", "-c", command], check=True)


@pytest.fixture
def network(ask: Callable[[str], str]) -> Iterator[Callable[[str], None]]:
    """Disturb what both machines send; it is over with the test."""

    def disturb(how: str) -> None:
        for run in (here, ask):
            run(f"tc qdisc add dev eth0 root netem {how}")

    yield disturb
    for run in (here, ask):
        run("tc qdisc del dev eth0 root 2>/dev/null; true")


def packets() -> tuple[int, int]:
    """Packets that this machine's device sent and received."""
    names = ("sent_pkts", "rcvd_pkts")
    sent, received = (int((COUNTERS / name).read_text()) for name in names)
    return sent, received
