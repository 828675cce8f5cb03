"""Each backend in turn: the simulated device, kind and hostile, everywhere; the others on a device.

On a machine without RDMA the others skip, with a reason that CI allows. In the emulated machine
(``SOFTROCE`` is set there) they never do.
"""

import functools
import os
from collections.abc import Iterator

import pytest

from l5.rdma import _discover, verbs
from l5.rdma._simulated import Fabric, SimulatedBackend, hostile, kind

from ._rig import Rig, rig_on

PLANS = {
    "kind": kind,
    "hostile": lambda: hostile(20261128),
    "unordered": lambda: hostile(4, ordered=False),
}


REAL = ("cverbs", "pyverbs")
# Without SOFTROCE (a machine with a device) the backends for devices may be left out.
PROMISED = bool(os.environ.get("SOFTROCE"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        real = [pytest.param(name, marks=marks(name)) for name in REAL]
        # In the emulated machine only what is to be had nowhere else: it is slow.
        simulated = () if PROMISED else PLANS
        metafunc.parametrize("backend", [*simulated, *real], indirect=True)


@functools.cache
def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Skip where there is no device; where one was promised, the test fails by itself."""
    if PROMISED or _discover.available(name):
        return ()
    return (pytest.mark.skip(reason=f"no RDMA device for {name}"),)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> verbs.Backend:
    name: str = request.param
    if name in PLANS:
        fabric = Fabric(PLANS[name]())
        fabric.add_device("sim0", "127.0.0.1", "::1")
        return SimulatedBackend(fabric)
    found = _discover.available(name)
    assert found, found.reason
    return _discover.backend(name)


@pytest.fixture
def address(backend: verbs.Backend) -> str:
    """An IPv4 address of the device under test."""
    found = os.environ.get("SOFTROCE_ADDR")
    if found and backend.name != "simulated":
        return found
    addresses = [] if backend.name == "simulated" else _discover.available(backend.name).addresses
    return next((one for one in addresses if ":" not in one), "127.0.0.1")


@pytest.fixture
def rig(backend: verbs.Backend, address: str) -> Iterator[Rig]:
    with rig_on(backend, backend.devices()[0], address) as one:
        yield one
