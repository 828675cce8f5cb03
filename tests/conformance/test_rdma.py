"""RDMA passes the suite of every transport, over a simulated device, kind and hostile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from l5.rdma import _simulated
from l5.testing import TransportSuite


class OverSimulatedDevice(TransportSuite):
    __test__ = False  # what follows is tested
    transport = "rdma"
    plan: ClassVar[str] = "kind"

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("L5_VERBS", "simulated")
        monkeypatch.setenv("L5_SIMULATED", self.plan)
        monkeypatch.setattr(_simulated, "_DEFAULT", [])
        yield

    def url(self, directory: str) -> str:
        return "l5+rdma://127.0.0.1:0"


class TestFlagsAndImmediates(OverSimulatedDevice):
    """The default: flags in memory, and an immediate that wakes who sleeps."""

    __test__ = True
