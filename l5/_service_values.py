"""What native services take and give: errors, statistics, and addresses of C functions."""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

import attrs

from . import native
from ._errors import L5Error
from ._quota import CurrentQuota

CAPSULE_NAME = b"l5.handler"


class HandlerError(L5Error):
    """A native handler answered with an error: its type's name and its message."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(f"{type}: {message}" if message else type)
        self.type = type
        self.message = message


@attrs.frozen
class ServiceStatistics:
    """Counters of a native service since it was started."""

    requests: int
    """Answered by the workers, errors included."""
    errors: int
    connections: int
    """Held by the workers now."""
    connections_total: int
    faults: int
    """Connections that ended because the client broke the protocol."""
    stored_bytes: int
    """Long requests and unsent answers that are held now."""
    busy_share: float
    """Useful time over wall time of the last heartbeats, from 0 to 1, mean over the workers."""
    spun_s: float
    slept_s: float
    sleeps: int
    bells_rung: int
    """How often a client had to be woken (of connections that have ended)."""
    bells_heard: int


class Limits(Protocol):
    """What one side takes from the other (see `l5._hello.Limits`)."""

    @property
    def max_message_bytes(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def credit_bytes(self) -> int: ...
    @property
    def heartbeat_ms(self) -> int: ...
    @property
    def in_flight_max(self) -> int: ...


class Counters:
    """The counters of a service, for any thread, also while the service ends."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._last: ServiceStatistics | None = None
        self._quota = CurrentQuota()

    def see_quota(self) -> None:
        """Let the workers know what quota this process has now: it may have used it up."""
        quota = self._quota.get()
        stat = b"" if quota is None else os.fsencode(quota.stat)
        millionths = 0 if quota is None else round(quota.processors * 1e6)
        native.lib.l5_service_set_quota(self._service, millionths, stat)

    def read(self) -> ServiceStatistics:
        """Return them; after `end` those of the end."""
        with self._lock:
            return self._last or _read(self._service)

    def end(self) -> None:
        """Read them for the last time: the service is about to be freed."""
        with self._lock:
            self._last = _read(self._service)


def _read(service: Any) -> ServiceStatistics:
    counts = native.ffi.new("struct l5_service_statistics *")
    native.lib.l5_service_count(service, counts)
    return ServiceStatistics(
        requests=counts.requests,
        errors=counts.errors,
        connections=counts.connections,
        connections_total=counts.accepted,
        faults=counts.faults,
        stored_bytes=counts.stored_bytes,
        busy_share=counts.busy_millionths / 1e6,
        spun_s=counts.spun_ns / 1e9,
        slept_s=counts.slept_ns / 1e9,
        sleeps=counts.sleeps,
        bells_rung=counts.bells_rung,
        bells_heard=counts.bells_heard,
    )


def check_number(name: str, value: int, low: int, high: int) -> None:
    """Raise `ValueError` for an argument out of range."""
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r}: expected a whole number from {low} to {high}")


def check(rc: int) -> None:
    """Raise `OSError` for a negative errno."""
    if rc < 0:
        raise OSError(-rc, f"native service: {os.strerror(-rc)}")


def address_of(value: Any, name: str) -> int:
    """Return an address given as an integer or as a cffi pointer."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return value
    if isinstance(value, native.ffi.CData):
        return int(native.ffi.cast("uintptr_t", value))
    raise TypeError(f"{name}: expected an address (an integer or a cffi pointer), not {value!r}")


def handler_address(handler: Any) -> tuple[int, int | None]:
    """Return the address of a handler function and, from a capsule, that of its state."""
    if type(handler).__name__ != "PyCapsule":
        address = address_of(handler, "handler")
        if not address:
            raise ValueError("handler: the address of a C function is needed, not NULL")
        return address, None
    import ctypes

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    entry = native.ffi.cast("struct l5_service_entry *", pointer(handler, CAPSULE_NAME))
    if entry.struct_bytes < native.ffi.sizeof("struct l5_service_entry") or not entry.handler:
        raise ValueError("handler: the capsule does not hold a struct l5_handler_entry")
    return entry.handler, entry.state
