"""The simulated device as the backend of this process, for the length of a test."""

from __future__ import annotations

import pytest

from l5.rdma import _simulated


def simulate(monkeypatch: pytest.MonkeyPatch, plan: str = "kind") -> None:
    """Have RDMA mean a fabric of its own from now on, new, which follows `plan`."""
    monkeypatch.setenv("L5_VERBS", "simulated")
    monkeypatch.setenv("L5_SIMULATED", plan)
    monkeypatch.setattr(_simulated, "_DEFAULT", [])
