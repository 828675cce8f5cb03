"""The simulated device: verbs in memory, for tests without RDMA; stricter than Soft-RoCE.

It works between the queue pairs of one process, on real addresses. What Soft-RoCE lets pass is an
error here: a slot of the send queue is free when a later completion was polled, and not before; a
path MTU over the port's is refused; a completion queue that overran stays broken; the source of a
write is read when it leaves, so that memory reused too early is seen. When things happen, and in
which pieces, is the plan's choice (see `_simulated_plans`).
"""

from __future__ import annotations

import errno
import os

from . import _constants as c
from . import verbs
from ._simulated_fabric import Fabric
from ._simulated_pairs import SimulatedQueue, SimulatedQueuePair, SimulatedRegion
from ._simulated_parts import INLINE_MAX, Memory, Port
from ._simulated_plans import Plan, explore, hostile, kind
from ._values import Gid, QueuePairOptions

__all__ = ["Fabric", "Plan", "SimulatedBackend", "backend", "explore", "hostile", "kind"]

_DEFAULT: list[SimulatedBackend] = []


def backend() -> SimulatedBackend:
    """Return the backend over the process's own fabric: one device on the loopback addresses.

    ``L5_SIMULATED`` chooses its plan: ``kind`` (also when unset), ``hostile:SEED`` or
    ``unordered:SEED``.
    """
    if not _DEFAULT:
        fabric = Fabric(_plan_named(os.environ.get("L5_SIMULATED", "")))
        fabric.add_device("sim0", "127.0.0.1", "::1")
        _DEFAULT.append(SimulatedBackend(fabric))
    return _DEFAULT[0]


def _plan_named(text: str) -> Plan:
    name, _, seed = text.partition(":")
    if name in ("", "kind"):
        return kind()
    if name in ("hostile", "unordered") and seed.isdigit():
        return hostile(int(seed), ordered=name == "hostile")
    raise ValueError(f"L5_SIMULATED={text}: it is kind, hostile:SEED or unordered:SEED")


class SimulatedBackend(verbs.Backend):
    """The devices of a simulated fabric."""

    name = "simulated"

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def devices(self) -> tuple[str, ...]:
        """List the fabric's devices."""
        return tuple(self.fabric.ports)

    def open(self, name: str) -> SimulatedDevice:
        """Open one of them."""
        port = self.fabric.ports.get(name)
        if port is None:
            raise verbs.VerbsUnavailable("device", f"there is no device {name!r}")
        return SimulatedDevice(self.fabric, port)


class SimulatedDevice(verbs.Device):
    """An open simulated device."""

    def __init__(self, fabric: Fabric, port: Port) -> None:
        super().__init__()
        self.name = port.name
        self.fabric = fabric
        self.shared = port
        fabric.use()

    @property
    def limits(self) -> verbs.DeviceLimits:
        """Say what it can do."""
        return self.shared.limits

    def port(self, number: int = 1) -> verbs.PortState:
        """Say how its port is."""
        self.check_open()
        if number != 1:
            raise verbs.verbs_error("query the port", errno.EINVAL)
        port = self.shared
        return verbs.PortState(1, port.state, port.active_mtu, port.link_layer)

    def gids(self, port: int = 1) -> tuple[Gid, ...]:
        """List the addresses it was plugged in with."""
        self.check_open()
        return self.shared.gids

    def protection_domain(self) -> SimulatedDomain:
        """Make a protection domain."""
        return SimulatedDomain(self)

    def completion_queue(self, depth: int, *, events: bool = False) -> SimulatedQueue:
        """Make a completion queue of exactly that depth."""
        if not 0 < depth <= self.limits.completion_depth:
            raise verbs.verbs_error("create a completion queue", errno.EINVAL)
        return SimulatedQueue(self, self.fabric, depth, events)

    def _release(self) -> None:
        self.fabric.unuse()


class SimulatedDomain(verbs.ProtectionDomain):
    """A protection domain."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(device)
        self.device = self._simulated = device

    def register(
        self, address: int, length: int, access: int, *, owner: object = None
    ) -> SimulatedRegion:
        """Register memory; a shared device's lock limit counts as the system's does."""
        self.check_open()
        port, fabric = self._simulated.shared, self._simulated.fabric
        call = "register memory"
        writes = access & (c.REMOTE_WRITE | c.REMOTE_ATOMIC)
        if length < 1 or (writes and not access & c.LOCAL_WRITE):
            raise verbs.verbs_error(call, errno.EINVAL)
        with fabric.lock:
            most = port.locked_bytes_max
            if most is not None and port.locked_bytes + length > most:
                raise verbs.verbs_error(call, errno.ENOMEM, size_bytes=length)
            while (key := fabric.new_key()) in port.regions:
                pass
            memory = port.regions[key] = Memory(self, key, address, length, access)
            port.locked_bytes += length
        return SimulatedRegion(self, fabric, port, memory, owner)

    def queue_pair(
        self,
        send_queue: verbs.CompletionQueue,
        receive_queue: verbs.CompletionQueue,
        options: QueuePairOptions,
    ) -> SimulatedQueuePair:
        """Make a queue pair that has exactly what was asked for."""
        limits = self.device.limits
        deepest = max(options.send_depth, options.receive_depth)
        if deepest > limits.queue_depth or options.inline_bytes > INLINE_MAX:
            raise verbs.verbs_error("create a queue pair", errno.EINVAL)
        assert isinstance(send_queue, SimulatedQueue)
        assert isinstance(receive_queue, SimulatedQueue)
        return SimulatedQueuePair(
            self, self._simulated.fabric, self._simulated.shared, send_queue, receive_queue, options
        )

    def _release(self) -> None:
        pass
