"""The connections of `l5` without an event loop, for threads and synchronous programs."""

from ._connection import Connection, connect
from ._file import ConnectionFile
from ._in_place import Lease, ReplyStream, Reservation

__all__ = [
    "Connection",
    "ConnectionFile",
    "Lease",
    "ReplyStream",
    "Reservation",
    "connect",
]
