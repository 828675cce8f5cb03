"""The connections of `l5` without an event loop, for threads and synchronous programs.

    with l5.blocking.connect("l5://localhost:7471") as conn:
        reply = conn.request(b"...")

    def handle(request: bytes) -> bytes: ...
    with l5.blocking.serve(handle, "l5://localhost:7471") as server:
        server.wait_closed()

The same transports, protocol, options and errors: either end may be async.  `_hub` says how the
engine runs without a loop; `_connection`, `_serve` and `_listen` are what users hold.
"""

from ._connection import Connection, connect
from ._file import ConnectionFile
from ._in_place import Lease, ReplyStream, Reservation
from ._listen import Listener, listen
from ._regions import RemoteRegion
from ._serve import Server, serve

__all__ = [
    "Connection",
    "ConnectionFile",
    "Lease",
    "Listener",
    "RemoteRegion",
    "ReplyStream",
    "Reservation",
    "Server",
    "connect",
    "listen",
    "serve",
]
