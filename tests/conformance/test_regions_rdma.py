"""Remote memory over RDMA: the suite, over a simulated device, kind and hostile.

On one event loop each: what differs is the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from l5.rdma import _simulated
from l5.testing import RegionSuite


@pytest.fixture(scope="module", params=[pytest.param(("trio", {}), id="trio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class OverSimulatedDevice(RegionSuite):
    __test__ = False  # what follows is tested
    transport = "rdma"
    one_sided = True
    owner_atomics = False
    revoking_spares_others = False
    plan: ClassVar[str] = "kind"

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("L5_VERBS", "simulated")
        monkeypatch.setenv("L5_SIMULATED", self.plan)
        monkeypatch.setattr(_simulated, "_DEFAULT", [])
        yield

    def url(self, directory: str) -> str:
        return "l5+rdma://127.0.0.1:0"


class TestKindDevice(OverSimulatedDevice):
    """Everything happens at once."""

    __test__ = True


class TestHostileDevice(OverSimulatedDevice):
    """Everything happens late and in pieces."""

    __test__ = True

    plan = "hostile:7"
