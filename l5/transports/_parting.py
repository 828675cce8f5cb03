"""Leave a TCP socket without a reset, which would take from the peer what it has not got yet."""

from __future__ import annotations

import socket
import sys
from typing import Final

__all__ = ["part", "resets"]

_READ_BYTES: Final = 64 * 1024
_READS_MAX: Final = 16


def resets(sock: socket.socket) -> bool:
    """Tell whether closing this socket can make the system drop what was sent."""
    return sock.family in (socket.AF_INET, socket.AF_INET6)


def part(sock: socket.socket) -> bool:
    """Stop sending, throw away what has arrived; True when closing loses nothing.

    That is so when the peer has closed, too, or when its system has acknowledged everything.
    """
    try:
        sock.shutdown(socket.SHUT_WR)
        for _ in range(_READS_MAX):
            if not sock.recv(_READ_BYTES):
                return True
    except BlockingIOError:
        pass
    except OSError:
        return True  # reset by the peer, or never connected: there is nobody to lose anything
    return _unsent_bytes(sock) == 0


def _unsent_bytes(sock: socket.socket) -> int | None:
    """Return how much the peer's system has not acknowledged; None where nobody says."""
    if sys.platform != "linux":
        return None
    import fcntl
    import termios

    count = bytearray(4)
    try:
        fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    except OSError:
        return None
    return int.from_bytes(count, sys.byteorder)
