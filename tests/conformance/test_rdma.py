"""RDMA passes the suite of every transport, over a simulated device, kind and hostile."""

from __future__ import annotations

from typing import ClassVar

import pytest

from l5.testing import TransportSuite
from tests.rdma._simulated import simulate


class SimulatedDevice:
    """What a suite needs to run over the device that follows `plan`."""

    transport = "rdma"
    plan: ClassVar[str] = "kind"

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        simulate(monkeypatch, self.plan)

    def url(self, directory: str) -> str:
        return "l5+rdma://127.0.0.1:0"


class OverSimulatedDevice(SimulatedDevice, TransportSuite):
    __test__ = False  # what follows is tested


class TestFlagsAndImmediates(OverSimulatedDevice):
    """The default: flags in memory, and an immediate that wakes who sleeps."""

    __test__ = True
