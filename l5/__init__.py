"""`l5`: async connections that upgrade themselves.

    async with await l5.connect("l5://localhost:7471") as conn:
        reply = await conn.request(b"...")

    async def handle(request: bytes) -> bytes: ...
    async with l5.serve(handle, "l5://localhost:7471", "l5+unix:///run/me.sock") as server: ...

How the package is laid out: `abc` holds the contracts of transports; `transports/` has one file
for each, over their toolboxes (`shm/`); `_address _options _hello _frames _flow _requests
_selector _offload _errors` are pure (no I/O, no clock); `_bootstrap` shakes hands, `_session` is
one connection's engine, `_wait` the one wait loop of an event loop, `_connection` and `_serve` what
users hold; `native/` is the C core, `_service` its worker threads.
"""

# First of all: it refuses a subinterpreter.
from . import _interpreter as _interpreter

# isort: split
import logging as _logging

from . import abc
from ._address import Address
from ._connect import connect
from ._connection import Connection, ConnectionStatistics
from ._errors import (
    AddressError,
    Attempt,
    BufferTooShort,
    ConnectError,
    DeadlineExceeded,
    L5Error,
    LocalProtocolError,
    MessageTooLarge,
    ProtocolError,
    RemoteAccessError,
    RemoteProtocolError,
    RequestFailed,
    TornRead,
    TransportUnavailable,
)
from ._handler import RequestContext
from ._heartbeat import Heartbeat
from ._in_place import Lease, Reservation
from ._listen import Listener, listen
from ._live import Snapshot, snapshot
from ._offload import (
    AlwaysClient,
    AlwaysServer,
    BackoffPolicy,
    ExponentialAverage,
    OffloadPolicy,
    PaperBackoffPolicy,
    Path,
    Trend,
)
from ._offload_adaptive import AdaptivePolicy
from ._offload_latency import LatencyPolicy
from ._options import ListenOptions, Options
from ._page_values import Extent, PageCopies, PageLayout, PageStatistics, ReadableRegion
from ._pages import PageReader, PageWriter
from ._region import Region
from ._selector import UpgradeReport
from ._serve import Server, ServerStatistics, serve
from ._service import HandlerError, NativeService
from ._status import StatusEndpoint, open_status
from ._streams import ConnectionByteStream, ReplyStream
from ._tap import Tap, tap

__all__ = [
    "AdaptivePolicy",
    "Address",
    "AddressError",
    "AlwaysClient",
    "AlwaysServer",
    "Attempt",
    "BackoffPolicy",
    "BufferTooShort",
    "ConnectError",
    "Connection",
    "ConnectionByteStream",
    "ConnectionStatistics",
    "DeadlineExceeded",
    "ExponentialAverage",
    "Extent",
    "HandlerError",
    "Heartbeat",
    "L5Error",
    "LatencyPolicy",
    "Lease",
    "ListenOptions",
    "Listener",
    "LocalProtocolError",
    "MessageTooLarge",
    "NativeService",
    "OffloadPolicy",
    "Options",
    "PageCopies",
    "PageLayout",
    "PageReader",
    "PageStatistics",
    "PageWriter",
    "PaperBackoffPolicy",
    "Path",
    "ProtocolError",
    "ReadableRegion",
    "Region",
    "RemoteAccessError",
    "RemoteProtocolError",
    "ReplyStream",
    "RequestContext",
    "RequestFailed",
    "Reservation",
    "Server",
    "ServerStatistics",
    "Snapshot",
    "StatusEndpoint",
    "Tap",
    "TornRead",
    "TransportUnavailable",
    "Trend",
    "UpgradeReport",
    "abc",
    "connect",
    "listen",
    "open_status",
    "serve",
    "snapshot",
    "tap",
]

# As libraries do: what is logged is the application's to show.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())
