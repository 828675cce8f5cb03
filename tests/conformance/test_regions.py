"""Remote memory over every transport of l5: the suite that is shipped for transports of others."""

from __future__ import annotations

import pytest

from l5.testing import RegionSuite
from tests.conformance.test_transports import OverTLS


class TestInproc(RegionSuite):
    transport = "inproc"
    one_sided = False

    def url(self, directory: str) -> str:
        return f"l5+inproc://{directory.rpartition('/')[2]}"


class TestUnix(RegionSuite):
    transport = "unix"
    one_sided = False

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s?transports=unix"


class TestTCP(RegionSuite):
    transport = "tcp"
    one_sided = False

    def url(self, directory: str) -> str:
        return "l5+tcp://127.0.0.1:0"


class TestTLS(OverTLS, RegionSuite):
    one_sided = False


@pytest.mark.shm
class TestSharedMemory(RegionSuite):
    """Upgraded from a Unix socket."""

    transport = "shm"
    one_sided = True

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s"


@pytest.mark.shm
class TestSharedMemoryFromTCP(RegionSuite):
    """Upgraded from TCP, through the rendezvous."""

    transport = "shm"
    one_sided = True

    def url(self, directory: str) -> str:
        return "l5://127.0.0.1:0"
