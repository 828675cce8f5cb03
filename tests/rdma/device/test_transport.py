"""The transport over a real driver (Soft-RoCE), on both bindings: messages, ends, what is left.

The whole suite runs over the simulated device (tests/conformance/test_rdma.py). This part shows
that a driver does what the simulation says; each binding on one loop, for time is short there.
"""

import json
import os
import subprocess

import pytest

import l5
from l5.testing._ends import EndTests
from l5.testing._messages import MessageTests

ADDRESS = os.environ.get("SOFTROCE_ADDR", "")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not ADDRESS, reason="no RDMA device: needs an emulated machine"),
]


class TestOverSoftRoCE(MessageTests, EndTests):
    transport = "rdma"
    server_options = {"insecure": True}

    def url(self, directory: str) -> str:
        return f"l5+rdma://{ADDRESS}:0"


def resources() -> dict[str, int]:
    """What the kernel says is in use of the device."""
    done = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, check=True)
    (device,) = json.loads(done.stdout)
    return {name: device[name] for name in ("pd", "cq", "qp", "mr")}


async def reverse(request: bytes) -> bytes:
    return bytes(request)[::-1]


async def test_nothing_is_left_of_connections(binding: str) -> None:
    before = resources()
    during = before
    async with l5.serve(reverse, f"l5+rdma://{ADDRESS}:0", insecure=True) as server:
        for _ in range(3):
            async with (
                await l5.connect(server.urls[0]) as one,
                await l5.connect(server.urls[0]) as other,
            ):
                assert await one.request(b"ab") == b"ba" and await other.request(b"cd") == b"dc"
                during = resources()
    assert during["qp"] >= before["qp"] + 4 and during["mr"] > before["mr"], "it was not RDMA"
    assert resources() == before
