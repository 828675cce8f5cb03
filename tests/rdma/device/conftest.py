"""A real driver (Soft-RoCE), through both bindings: each on a loop of its own, for time is short.

On the other one ours runs between two machines (tests/rdma/two_machines).
"""

from typing import Any

import pytest

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "cverbs": ("trio", {}),
    "pyverbs": ("asyncio", {}),
}


@pytest.fixture(scope="module", params=LOOPS)
def binding_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def anyio_backend(binding_name: str) -> tuple[str, dict[str, Any]]:
    return LOOPS[binding_name]


@pytest.fixture(autouse=True)
def binding(binding_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("L5_VERBS", binding_name)
    return binding_name
