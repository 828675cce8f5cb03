"""A connection as a file: bytes instead of messages."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    import sys

    from ._connection import Connection

    if sys.version_info >= (3, 12):
        from collections.abc import Buffer
    else:
        from typing_extensions import Buffer


class ConnectionFile(io.RawIOBase):
    """A raw binary file whose bytes travel in messages; boundaries are not kept.

    Wrap it as any raw file: ``io.BufferedRWPair(file, file)``, ``io.TextIOWrapper``.  Closing it
    closes the connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return not self.closed

    def writable(self) -> bool:
        """Return True."""
        return not self.closed

    def readinto(self, buffer: Buffer, /) -> int:
        """Read at least one byte into `buffer`; 0 at the end of the stream."""
        self._check_open()
        target = memoryview(buffer).cast("B")
        while not self._rest and len(target):
            try:
                self._rest = memoryview(self._connection.receive())
            except anyio.EndOfStream:
                return 0
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def write(self, data: Buffer, /) -> int:
        """Send all of `data`, in messages of at most a segment."""
        self._check_open()
        view = memoryview(data).cast("B")
        step = self._connection._session.sends.segment_bytes  # pyright: ignore
        for start in range(0, len(view), step):
            self._connection.send(view[start : start + step])
        return len(view)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed file")

    def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            try:
                self._connection.close()
            finally:
                super().close()
