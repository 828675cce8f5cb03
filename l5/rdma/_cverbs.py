"""Verbs over our own binding: libibverbs.so.1, opened when RDMA is first asked for.

It works with any Python and any release of the library, and needs nothing else. Setting up goes
through cffi (l5/native/verbs.h), which lets go of the GIL; posting and polling are methods of types
in C (l5/native/_verbs.h), which do not: neither waits.

    Device ─ context   ProtectionDomain ─ pd   MemoryRegion ─ mr   CompletionQueue ─ cq, channel
    QueuePair ─ qp, from which requests are prepared; they refer to the C side of queue and region
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .. import native
from . import _constants as c
from . import verbs
from ._cverbs_parts import NativeCompletionQueue, NativeQueuePair, NativeRegion, check
from ._library import queue_pair_parts
from ._values import DeviceLimits, Gid, PortState, QueuePairOptions

NAMES_BYTES: Final = 1 << 16
GIDS_MAX: Final = 1024
LIBRARY_ADVICE: Final = (
    "install it (Debian, Ubuntu: `apt install libibverbs1 ibverbs-providers`;"
    " RHEL: `dnf install libibverbs`)"
)
# How sysfs writes the kinds of GIDs, for libraries that cannot be asked.
KINDS: Final = {"IB/RoCE v1": c.GID_ROCE_V1, "RoCE v2": c.GID_ROCE_V2}

_ffi: Any = native.ffi
_lib: Any = native.lib


def backend() -> NativeBackend:
    """Return the backend.

    :raises VerbsUnavailable: our compiled module or libibverbs is missing.
    """
    if not native.available:
        raise verbs.VerbsUnavailable(
            "backend", native.reason, "install l5 from a wheel, or build it again"
        )
    why = _lib.l5_verbs_load()
    if why != _ffi.NULL:
        text = _ffi.string(why).decode(errors="replace")
        raise verbs.VerbsUnavailable(
            "library", f"libibverbs cannot be used: {text}", LIBRARY_ADVICE
        )
    return NativeBackend()


class NativeBackend(verbs.Backend):
    """The devices that libibverbs knows."""

    name = "cverbs"

    def devices(self) -> tuple[str, ...]:
        """List the devices' names."""
        names = _ffi.new("char[]", NAMES_BYTES)
        check("list the devices", _lib.l5_verbs_devices(names, NAMES_BYTES))
        return tuple(_ffi.string(names).decode().split())

    def open(self, name: str) -> NativeDevice:
        """Open a device."""
        context = _ffi.new("uint64_t *")
        code = _lib.l5_verbs_open(name.encode(), context)
        if code == -errno.ENODEV:
            have = ", ".join(self.devices()) or "none"
            raise verbs.VerbsUnavailable(
                "device", f"there is no device {name!r}", f"there is {have}"
            )
        check("open the device", code)
        return NativeDevice(name, context[0])


class NativeDevice(verbs.Device):
    """An open device."""

    def __init__(self, name: str, context: int) -> None:
        super().__init__()
        self.name = name
        self.context = context
        found = _ffi.new("struct l5_verbs_limits *")
        code = _lib.l5_verbs_limits(context, found)
        if code < 0:
            _lib.l5_verbs_close(context)
            raise verbs.verbs_error("query the device", -code)
        self._limits = DeviceLimits(
            queue_depth=found.queue_depth,
            completion_depth=found.completion_depth,
            sges=found.sges,
            rd_atomic=min(found.rd_atomic, 255),
            init_rd_atomic=min(found.init_rd_atomic, 255),
            region_bytes=found.region_bytes,
            atomics=found.atomics,
            ports=found.ports,
            memory_windows_type2=bool(found.windows_type2),
        )

    @property
    def limits(self) -> DeviceLimits:
        """Say what the device can do."""
        return self._limits

    def port(self, number: int = 1) -> PortState:
        """Ask for the state of a port."""
        found = self._port(number)
        return PortState(number, found.state, found.active_mtu, found.link_layer, found.lid)

    def _port(self, number: int) -> Any:
        self.check_open()
        if not 1 <= number <= self._limits.ports:
            raise verbs.verbs_error("query the port", errno.EINVAL)
        found = _ffi.new("struct l5_verbs_port *")
        check("query the port", _lib.l5_verbs_port(self.context, number, found))
        return found

    def gids(self, port: int = 1) -> tuple[Gid, ...]:
        """List the GIDs of a port."""
        state = self._port(port)
        table = _ffi.new("struct l5_verbs_gid[]", GIDS_MAX)
        count = _lib.l5_verbs_gids(self.context, port, table, GIDS_MAX)
        if count == -errno.ENOSYS:
            return tuple(self._gids_one_by_one(port, min(state.gid_count, GIDS_MAX)))
        check("query the GIDs", count)
        entries = (table[index] for index in range(count))
        return tuple(Gid(entry.index, bytes(entry.raw), entry.kind) for entry in entries)

    def _gids_one_by_one(self, port: int, count: int) -> Iterator[Gid]:
        folder = Path("/sys/class/infiniband", self.name, "ports", str(port), "gid_attrs", "types")
        raw = _ffi.new("uint8_t[16]")
        for index in range(count):
            if _lib.l5_verbs_gid(self.context, port, index, raw) < 0 or not any(raw):
                continue
            try:
                kind = (folder / str(index)).read_text(encoding="ascii").strip()
            except OSError:
                continue
            yield Gid(index, bytes(raw), KINDS.get(kind, c.GID_INFINIBAND))

    def protection_domain(self) -> NativeDomain:
        """Make a protection domain."""
        self.check_open()
        domain = _ffi.new("uint64_t *")
        code = _lib.l5_verbs_domain_create(self.context, domain)
        check("create a protection domain", code)
        return NativeDomain(self, domain[0])

    def completion_queue(self, depth: int, *, events: bool = False) -> NativeCompletionQueue:
        """Make a completion queue."""
        self.check_open()
        if not 1 <= depth <= self._limits.completion_depth:
            raise verbs.verbs_error("create a completion queue", errno.EINVAL)
        found = _ffi.new("struct l5_verbs_completions *")
        code = _lib.l5_verbs_completions_create(self.context, depth, events, found)
        check("create a completion queue", code)
        return NativeCompletionQueue(self, found)

    def _release(self) -> None:
        check("close the device", _lib.l5_verbs_close(self.context))


class NativeDomain(verbs.ProtectionDomain):
    """A protection domain."""

    def __init__(self, device: NativeDevice, handle: int) -> None:
        super().__init__(device)
        self.device = device
        self.handle = handle

    def register(
        self, address: int, length: int, access: int, *, owner: object = None
    ) -> NativeRegion:
        """Register memory."""
        self.check_open()
        verbs.check_registration(address, length, access)
        found = _ffi.new("struct l5_verbs_region *")
        code = _lib.l5_verbs_region_create(self.handle, address, length, access, found)
        check("register memory", code, size_bytes=length)
        return NativeRegion(self, found, address, length, access, owner)

    def queue_pair(
        self,
        send_queue: verbs.CompletionQueue,
        receive_queue: verbs.CompletionQueue,
        options: QueuePairOptions,
    ) -> NativeQueuePair:
        """Make a queue pair."""
        sending, receiving, counts = queue_pair_parts(
            self, (send_queue, receive_queue), NativeCompletionQueue, options
        )
        found = _ffi.new("struct l5_verbs_queue *")
        found.send_depth, found.receive_depth, found.inline_bytes = counts
        found.sges = 1
        code = _lib.l5_verbs_queue_create(
            self.handle, sending.found.handle, receiving.found.handle, found
        )
        check("create a queue pair", code)
        return NativeQueuePair(self, sending, receiving, options, found)

    def _release(self) -> None:
        check("close the protection domain", _lib.l5_verbs_domain_destroy(self.handle))
