"""Remote memory over RDMA: the suite, over a simulated device, kind and hostile.

On one event loop each: what differs is the device.
"""

from __future__ import annotations

import pytest

from l5.testing import RegionSuite
from tests.conformance.test_rdma import SimulatedDevice


@pytest.fixture(scope="module", params=[pytest.param(("trio", {}), id="trio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class OverSimulatedDevice(SimulatedDevice, RegionSuite):
    __test__ = False  # what follows is tested
    one_sided = True
    owner_atomics = False
    revoking_spares_others = False


class TestKindDevice(OverSimulatedDevice):
    """Everything happens at once."""

    __test__ = True


class TestHostileDevice(OverSimulatedDevice):
    """Everything happens late and in pieces."""

    __test__ = True

    plan = "hostile:7"
