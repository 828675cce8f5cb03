"""Every transport of l5 passes the suite that is shipped for transports of others."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import pytest
import trustme

from l5.testing import TransportSuite


class TestInproc(TransportSuite):
    transport = "inproc"

    def url(self, directory: str) -> str:
        return f"l5+inproc://{directory.rpartition('/')[2]}"


class TestUnix(TransportSuite):
    transport = "unix"

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s?transports=unix"


class TestTCP(TransportSuite):
    transport = "tcp"

    def url(self, directory: str) -> str:
        return "l5+tcp://127.0.0.1:0"


@cache
def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's context."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


class OverTLS:
    """What a suite needs to run over TLS."""

    transport = "tcp"

    @property
    def server_options(self) -> dict[str, Any]:
        return {"ssl_context": certificates()[0]}

    @property
    def client_options(self) -> dict[str, Any]:
        return {"ssl_context": certificates()[1]}

    def url(self, directory: str) -> str:
        return "l5s://127.0.0.1:0?transports=tcp"


class TestTLS(OverTLS, TransportSuite):
    pass


@pytest.mark.shm
class TestSharedMemory(TransportSuite):
    """Upgraded from a Unix socket."""

    transport = "shm"
    ring_bytes = 256 << 10
    segment_bytes = 64 << 10
    data_window_bytes = 256 << 10

    def url(self, directory: str) -> str:
        return f"l5+unix://{directory}/s"


@pytest.mark.shm
class TestSharedMemoryFromTCP(TransportSuite):
    """Upgraded from TCP, through the rendezvous."""

    transport = "shm"

    def url(self, directory: str) -> str:
        return "l5://127.0.0.1:0"


@pytest.mark.shm
class TestSharedMemoryInTheSmallestRing(TransportSuite):
    """Demanded, with rings that everything wraps around in; nobody ever spins."""

    transport = "shm"
    client_options = {"spin_us": 0}
    server_options = {"spin_us": 0}

    def url(self, directory: str) -> str:
        return f"l5+shm://{directory}/s"
