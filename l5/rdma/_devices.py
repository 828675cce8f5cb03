"""Open devices: one for all connections of a process that use it, closed with the last of them."""

from __future__ import annotations

import os
from typing import Any

from ._discover import Place, backend, locate
from .verbs import Device

_open: dict[tuple[int, str], _Shared] = {}


class _Shared:
    def __init__(self, key: tuple[int, str], device: Device) -> None:
        self.key = key
        self.device = device
        self.users = 0


class Lease:
    """A device, port and GID for one connection, until `close`."""

    def __init__(self, shared: _Shared, place: Place) -> None:
        shared.users += 1
        self._shared: _Shared | None = shared
        self.device: Device = place.device
        self.place: Place = place

    def close(self) -> None:
        """Give it back; may be called twice."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users and _open.pop(shared.key, None) is not None:
            shared.device.close()


def lease(host: str) -> Lease:
    """Find the device whose port has the local address `host`.

    :raises VerbsUnavailable: there is none, or no way to any; it says what is missing.
    """
    source: Any = backend()
    shares: dict[Device, _Shared] = {}
    try:
        for name in source.devices():
            key = (id(source), name)
            shared = _open.get(key) or _Shared(key, source.open(name))
            shares[shared.device] = shared
        place = locate(shares, host)
        chosen = shares[place.device]
        _open[chosen.key] = chosen
        return Lease(chosen, place)
    finally:
        for shared in shares.values():
            if not shared.users:
                _open.pop(shared.key, None)
                shared.device.close()


# The child's would be the parent's: it opens them anew.
os.register_at_fork(after_in_child=_open.clear)
