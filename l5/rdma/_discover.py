"""Finding the way: which backend, device, port and GID, and in words why there is none."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from . import _constants as c
from . import verbs
from ._errors import MEMLOCK_ADVICE, VerbsError, VerbsUnavailable
from ._values import Gid, PortState, choose_gid

BACKENDS: Final = ("cverbs", "pyverbs", "simulated")
DEFAULT_BACKEND: Final = "cverbs"
# What a server registers for its clients' rows and rings at the least, with room for some clients.
MEMLOCK_NEEDED_BYTES: Final = 8 << 20

DEVICE_ADVICE: Final = (
    "install a card and its driver (`ibv_devices` lists what is there), or Soft-RoCE on an Ethernet"
    " interface: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`; a container needs"
    " /dev/infiniband handed to it"
)
PORT_ADVICE: Final = (
    "bring the interface up (`ip link set dev NAME up`, `rdma link` shows the states); InfiniBand"
    " needs a subnet manager"
)
GID_ADVICE: Final = "give the interface that the device belongs to an IP address"


def backend(name: str | None = None) -> verbs.Backend:
    """Return the backend of that name: "cverbs" (the default), "pyverbs" or "simulated".

    Without a name, the environment's ``L5_VERBS`` chooses. Nothing of it is imported before.

    :raises VerbsUnavailable: it cannot be loaded here; ``missing`` is "backend" or "library".
    """
    name = name or os.environ.get("L5_VERBS") or DEFAULT_BACKEND
    if name not in BACKENDS:
        raise VerbsUnavailable(
            "backend", f"there is no backend {name!r}", f"L5_VERBS is one of {', '.join(BACKENDS)}"
        )
    try:
        module = importlib.import_module(f"._{name}", __package__)
    except ImportError as error:
        raise VerbsUnavailable(
            "backend", f"the backend {name} cannot be imported ({error})", _backend_advice(name)
        ) from error
    return module.backend()


def _backend_advice(name: str) -> str:
    if name == "pyverbs":
        return (
            "install the distribution's package (python3-pyverbs on Debian and Ubuntu) for the"
            " distribution's Python, or use the default backend: unset L5_VERBS"
        )
    return "build the compiled modules of l5: install it from a wheel, or run its build again"


@attrs.frozen
class Place:
    """A port that packets can leave by, and the GID to use there."""

    device: verbs.Device
    port: PortState
    gid: Gid


def locate(devices: Iterable[verbs.Device], address: str) -> Place:
    """Find among open devices the one whose port has the local IP `address`.

    :raises VerbsUnavailable: there is none; ``missing`` says whether a device, an active port or
        the GID is.
    """
    problem: VerbsUnavailable | None = None
    seen = False
    for device in devices:
        seen = True
        for number in range(1, device.limits.ports + 1):
            port = device.port(number)
            if not port.active:
                problem = problem or _inactive(device, port)
                continue
            try:
                gid = choose_gid(device.gids(number), address, link_layer=port.link_layer)
            except VerbsUnavailable as error:
                problem = error
            else:
                return Place(device, port, gid)
    if problem is not None:
        raise problem
    assert not seen
    raise VerbsUnavailable("device", "there is no RDMA device", DEVICE_ADVICE)


def _inactive(device: verbs.Device, port: PortState) -> VerbsUnavailable:
    return VerbsUnavailable(
        "port", f"port {port.number} of {device.name} is not active", PORT_ADVICE
    )


@attrs.frozen
class Availability:
    """Whether RDMA can be used by this process, and in words what is missing.

    ``missing`` is empty, or ``backend``, ``library``, ``device``, ``port``, ``gid``, ``memlock``.
    """

    usable: bool
    backend: str
    missing: str = ""
    reason: str = ""  # what is missing, and what to do about it
    devices: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()  # by which peers can be reached

    def __bool__(self) -> bool:
        return self.usable


def available(name: str | None = None) -> Availability:
    """Say whether RDMA can be used here, asking the backend `name` (or ``L5_VERBS``'s)."""
    chosen = name or os.environ.get("L5_VERBS") or DEFAULT_BACKEND
    try:
        return _look(chosen, backend(chosen))
    except VerbsUnavailable as error:
        return Availability(False, chosen, error.missing, _words(error))
    except VerbsError as error:
        return Availability(False, chosen, "device", str(error))


def _words(error: VerbsUnavailable) -> str:
    return f"{error.detail}; {error.advice}" if error.advice else error.detail


def _look(name: str, verbs_backend: verbs.Backend) -> Availability:
    names = verbs_backend.devices()
    if not names:
        reason = f"there is no RDMA device; {DEVICE_ADVICE}"
        return Availability(False, name, "device", reason)
    active, addresses, refusals = False, list[str](), list[str]()
    for device_name in names:
        try:
            with verbs_backend.open(device_name) as device:
                found = _addresses(device)
        except VerbsError as error:
            refusals.append(str(error))
            continue
        active = active or found is not None
        addresses += found or ()
    if len(refusals) == len(names):
        return Availability(False, name, "device", "; ".join(refusals), names)
    if not active:
        reason = f"no port of {', '.join(names)} is active; {PORT_ADVICE}"
        return Availability(False, name, "port", reason, names)
    if not addresses:
        reason = f"no active port of {', '.join(names)} has a RoCE v2 GID; {GID_ADVICE}"
        return Availability(False, name, "gid", reason, names)
    memlock = memlock_problem()
    if memlock and name != "simulated":
        return Availability(False, name, "memlock", memlock, names, tuple(addresses))
    return Availability(True, name, devices=names, addresses=tuple(addresses))


def _addresses(device: verbs.Device) -> list[str] | None:
    """List the addresses of a device's active ports; None if no port is active."""
    found: list[str] = []
    active = False
    for number in range(1, device.limits.ports + 1):
        port = device.port(number)
        if not port.active:
            continue
        active = True
        kinds = (c.GID_INFINIBAND,) if port.link_layer == c.LINK_INFINIBAND else (c.GID_ROCE_V2,)
        found += [gid.address for gid in device.gids(number) if gid.kind in kinds]
    return found if active else None


def memlock_problem(
    limit_bytes: int | None = None, *, needed_bytes: int = MEMLOCK_NEEDED_BYTES
) -> str:
    """Say in words that this process may not lock `needed_bytes`; empty if it may.

    `limit_bytes` is asked of the system when it is None.
    """
    if _may_lock_all():
        return ""
    if limit_bytes is None:
        import resource

        limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if limit_bytes == resource.RLIM_INFINITY:
            return ""
    if limit_bytes >= needed_bytes:
        return ""
    return (
        f"this process may lock {limit_bytes // 1024} KiB of memory, and RDMA needs"
        f" {needed_bytes // 1024} KiB at the least; {MEMLOCK_ADVICE}"
    )


def _may_lock_all() -> bool:
    """Tell whether this process has CAP_IPC_LOCK, to which the limit does not apply."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return os.geteuid() == 0
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 14 & 1)
    return False
