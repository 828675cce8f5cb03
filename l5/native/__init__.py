"""The C core as Python sees it: `Ring`, `Lane`, `Poller`, `Slot`, `Memory`, and cffi's `lib`.

`available` is False where the extension could not be loaded (PyPy, or a failed build) or may not
be (a free-threaded Python that runs without the GIL); then `reason` says why, and the socket
transports work all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from .._errors import RemoteAccessError, RemoteProtocolError
from .._interpreter import gil_missing

if TYPE_CHECKING:
    from .._fast import Adaptive, Lane, Latencies, Memory, Poller, Ring, Slot, Spot, set_paths

__all__ = [
    "Adaptive",
    "Lane",
    "Latencies",
    "Memory",
    "Poller",
    "Ring",
    "Slot",
    "Spot",
    "available",
    "ffi",
    "lib",
    "reason",
    "set_paths",
]

ffi: Any = None
lib: Any = None
available: bool = False
reason: str = ""

try:
    if _no_gil := gil_missing():
        raise ImportError(_no_gil)
    from .._native import ffi, lib  # type: ignore[import-not-found,no-redef]

    if lib.l5_install_fast() < 0:
        raise ImportError("the hot path could not be installed")
    from .._fast import (  # type: ignore[import-not-found,no-redef]
        Adaptive,
        Lane,
        Latencies,
        Memory,
        Poller,
        Ring,
        Slot,
        Spot,
        set_errors,
        set_paths,
    )

    set_errors(
        RemoteProtocolError,
        anyio.ClosedResourceError,
        anyio.BrokenResourceError,
        anyio.BusyResourceError,
        RemoteAccessError,
    )
    available = True
except ImportError as _error:
    reason = f"the C extension l5._native cannot be loaded: {_error}"
