"""A plugin for pytest: ``pytest -p l5.testing.plugin``, or ``pytest_plugins`` in a conftest.

It takes the option ``--l5-require shm,unix``: a transport that is named there and cannot be used
fails the run, where its tests would only be skipped.  Its fixture `anyio_backend` offers every
installed event loop to tests marked ``anyio``; import it in a conftest, which takes precedence over
the fixture of that name that anyio's own plugin has.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest


def _loops() -> list[Any]:
    no_options: dict[str, Any] = {}
    loops: list[Any] = [pytest.param(("asyncio", {"debug": True}), id="asyncio")]
    if importlib.util.find_spec("uvloop"):
        loops.append(pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"))
    if importlib.util.find_spec("trio"):
        loops.append(pytest.param(("trio", no_options), id="trio"))
    return loops


@pytest.fixture(scope="module", params=_loops())
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each installed event loop in turn, as anyio's plugin takes it."""
    return request.param


@pytest.fixture(params=["inproc", "tcp", "unix", "shm"])
def l5_transport(request: pytest.FixtureRequest) -> str:
    """Each transport in turn; skips those that cannot be used here."""
    from ._harness import why_not

    reason = why_not(request.param)
    if reason:
        pytest.skip(f"transport {request.param!r} cannot be used: {reason}")
    return request.param


@pytest.fixture
def l5_server() -> Any:
    """Return `l5.testing.faulty_server`: ``async with l5_server(handler, "shm") as server``.

    It is a plain function, so it works with every plugin that runs coroutines.
    """
    from ._faulty import faulty_server

    return faulty_server


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--l5-require``."""
    parser.addoption(
        "--l5-require",
        default="",
        metavar="NAMES",
        help="transports (shm,unix,...) that have to be usable: else the run fails at once",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Look at the required transports."""
    from ._harness import why_not  # not before assertions can be rewritten

    wanted: str = config.getoption("--l5-require") or ""
    for name in filter(None, wanted.split(",")):
        reason = why_not(name)
        if reason:
            raise pytest.UsageError(f"--l5-require: transport {name!r} cannot be used: {reason}")
