"""The suite over RDMA in the other modes, and over devices that are hostile: on one event loop.

What differs is the device; three times as long would tell no more.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.conformance.test_rdma import OverSimulatedDevice


@pytest.fixture(scope="module", params=[pytest.param(("trio", {}), id="trio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class TestFlags(OverSimulatedDevice):
    """Nothing wakes who sleeps."""

    __test__ = True

    client_options: ClassVar = {"rdma_mode": "flags"}
    server_options: ClassVar = {"rdma_mode": "flags"}


class TestImmediates(OverSimulatedDevice):
    """Nothing is told by memory alone."""

    __test__ = True

    client_options: ClassVar = {"rdma_mode": "imm"}


class TestHostileDevice(OverSimulatedDevice):
    """Messages arrive late and in pieces."""

    __test__ = True

    plan = "hostile:7"


class TestUnorderedDevice(OverSimulatedDevice):
    """Writes land in any order: what completions promise is all there is."""

    __test__ = True

    plan = "unordered:7"
    client_options: ClassVar = {"rdma_mode": "imm"}
