"""Whether RDMA can be used here, and in words why not."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from l5 import rdma
from l5.rdma import _discover, verbs
from l5.rdma._simulated import Fabric, SimulatedBackend
from l5.rdma.verbs import GID_ROCE_V1, PORT_DOWN, Gid, gid_of
from tests._imports import ROOT


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """A fabric whose devices are what `available` finds."""
    fabric = Fabric()
    stand_in(monkeypatch, SimulatedBackend(fabric))
    return fabric


def stand_in(monkeypatch: pytest.MonkeyPatch, backend: verbs.Backend | Exception) -> None:
    module = types.ModuleType("l5.rdma._cverbs")

    def answer() -> verbs.Backend:
        if isinstance(backend, Exception):
            raise backend
        return backend

    module.backend = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "l5.rdma._cverbs", module)
    monkeypatch.delenv("L5_VERBS", raising=False)


def test_a_device_with_an_active_port_and_an_address(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_discover, "_may_lock_all", lambda: True)
    fabric.add_device("rxe0", "192.0.2.1", "2001:db8::1")
    found = rdma.available()
    assert found and found.usable and not found.reason and not found.missing
    assert found.devices == ("rxe0",) and found.addresses == ("192.0.2.1", "2001:db8::1")
    assert found.backend == "cverbs"


def test_no_device(fabric: Fabric) -> None:
    found = rdma.available()
    assert not found and found.missing == "device"
    assert "modprobe rdma_rxe" in found.reason and "/dev/infiniband" in found.reason
    assert fabric.ports == {}


def test_no_active_port(fabric: Fabric) -> None:
    fabric.add_device("rxe0", "192.0.2.1").state = PORT_DOWN
    found = rdma.available()
    assert found.missing == "port" and "ip link set" in found.reason and "rxe0" in found.reason


@pytest.mark.parametrize("gids", [(), (Gid(0, gid_of("192.0.2.1"), GID_ROCE_V1),)])
def test_no_gid(fabric: Fabric, gids: tuple[Gid, ...]) -> None:
    fabric.add_device("rxe0").gids = gids
    found = rdma.available()
    assert found.missing == "gid" and "IP address" in found.reason


def test_memory_may_not_be_locked(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    fabric.add_device("rxe0", "192.0.2.1")
    stand_in(monkeypatch, Named(fabric))
    monkeypatch.setattr(_discover, "_may_lock_all", lambda: False)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    found = rdma.available()
    assert found.missing == "memlock" and "64 KiB" in found.reason
    for words in ("ulimit -l", "LimitMEMLOCK=", "--ulimit memlock", "limits.conf"):
        assert words in found.reason
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert rdma.available()


class Named(SimulatedBackend):
    name = "cverbs"


@pytest.mark.parametrize(
    ("limit_bytes", "words"), [(65536, "64 KiB"), (8 << 20, ""), (0, "0 KiB"), ((8 << 20) - 1, "8")]
)
def test_what_may_be_locked_is_enough_or_not(
    monkeypatch: pytest.MonkeyPatch, limit_bytes: int, words: str
) -> None:
    monkeypatch.setattr(_discover, "_may_lock_all", lambda: False)
    problem = _discover.memlock_problem(limit_bytes)
    assert (words in problem) if words else not problem
    monkeypatch.setattr(_discover, "_may_lock_all", lambda: True)
    assert not _discover.memlock_problem(limit_bytes)


def test_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, verbs.VerbsUnavailable("library", "no libibverbs.so.1", "install it"))
    found = rdma.available()
    assert (found.missing, found.reason) == ("library", "no libibverbs.so.1; install it")


def test_the_backend_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (("cverbs", "wheel"), ("pyverbs", "python3-pyverbs")):
        monkeypatch.setitem(sys.modules, f"l5.rdma._{name}", None)
        found = rdma.available(name)
        assert (found.backend, found.missing) == (name, "backend") and words in found.reason


def test_an_unknown_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L5_VERBS", "rubyverbs")
    found = rdma.available()
    assert found.missing == "backend"
    assert "'rubyverbs'" in found.reason and "cverbs, pyverbs, simulated" in found.reason


def test_a_device_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, fabric: Fabric) -> None:
    fabric.add_device("rxe0", "192.0.2.1")

    class Locked(SimulatedBackend):
        def open(self, name: str):  # type: ignore[no-untyped-def]
            raise verbs.verbs_error("open the device", 13)

    stand_in(monkeypatch, Locked(fabric))
    found = rdma.available()
    assert found.missing == "device" and "/dev/infiniband/uverbs" in found.reason


def test_the_place_is_found_among_several_devices() -> None:
    fabric = Fabric()
    fabric.add_device("down0", "192.0.2.1").state = PORT_DOWN
    fabric.add_device("other0", "192.0.2.2")
    fabric.add_device("mine0", "192.0.2.3", "192.0.2.4")
    backend = SimulatedBackend(fabric)
    devices = [backend.open(name) for name in backend.devices()]
    try:
        place = _discover.locate(devices, "192.0.2.4")
        assert (place.device.name, place.port.number, place.gid.index) == ("mine0", 1, 1)
        for address, missing in (("192.0.2.9", "gid"), ("192.0.2.1", "gid")):
            with pytest.raises(verbs.VerbsUnavailable) as none:
                _discover.locate(devices, address)
            assert none.value.missing == missing
        with pytest.raises(verbs.VerbsUnavailable) as none:
            _discover.locate(devices[:1], "192.0.2.1")
        assert none.value.missing == "port"
    finally:
        for device in devices:
            device.close()
    with pytest.raises(verbs.VerbsUnavailable) as none:
        _discover.locate([], "192.0.2.1")
    assert none.value.missing == "device"


def test_what_is_allowed_is_the_process_s_own() -> None:
    """CAP_IPC_LOCK, by the kernel's word, is what `mlock` beyond the limit goes by."""
    code = (
        "import resource, sys; from l5.rdma import _discover;"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0));"
        "import mmap, ctypes; m = mmap.mmap(-1, 1 << 16);"
        "libc = ctypes.CDLL(None, use_errno=True);"
        "a = ctypes.addressof(ctypes.c_char.from_buffer(m));"
        "may = libc.mlock(ctypes.c_void_p(a), 1 << 16) == 0;"
        "sys.exit(may != _discover._may_lock_all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


QUIET = """
import logging, sys
before = list(logging.root.handlers), logging.root.level
import l5, l5.abc, l5.blocking
assert (list(logging.root.handlers), logging.root.level) == before, "logging was changed"
wrong = [name for name in sys.modules if name.startswith(("pyverbs", "l5.rdma"))]
assert not wrong, f"imported: {wrong}"
import l5.rdma
wrong = [name for name in sys.modules if name.startswith(("pyverbs", "l5.rdma._cverbs",
         "l5.rdma._pyverbs", "l5.rdma._simulated"))]
assert not wrong, f"imported: {wrong}"
with open("/proc/self/maps") as maps:
    assert "libibverbs" not in maps.read()
for name in ("cverbs", "pyverbs", "simulated"):
    found = l5.rdma.available(name)
    assert bool(found) == (not found.reason), found
    assert (list(logging.root.handlers), logging.root.level) == before, f"{name} changed logging"
print("quiet")
"""


PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")


def test_importing_l5_imports_no_verbs_and_leaves_logging_alone(tmp_path: Path) -> None:
    if PYVERBS.is_dir():  # Debian's, for Debian's Python: then it is loaded, and sets up logging
        (tmp_path / "pyverbs").symlink_to(PYVERBS)
    environment = {key: value for key, value in os.environ.items() if key != "L5_VERBS"}
    environment["PYTHONPATH"] = f"{ROOT}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", QUIET],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.stdout == "quiet\n", done.stderr
