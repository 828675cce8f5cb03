"""A real driver (Soft-RoCE), through both bindings, on one loop: emulated processors are slow."""

import pytest

BINDINGS = ("cverbs", "pyverbs")


@pytest.fixture(scope="module", params=[pytest.param(("asyncio", {}), id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(params=BINDINGS, autouse=True)
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("L5_VERBS", request.param)
    return request.param
