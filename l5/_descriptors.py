"""Descriptors that a peer passes: whether it may, and how to get rid of what nobody wants.

The last close of a descriptor can wait for as long as its maker likes: a socket that lingers until
its data is read, a file of a file system that the peer runs itself.  An event loop must not wait.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final

_SO_PASSRIGHTS: Final = 83
_F_GET_SEALS: Final = getattr(fcntl, "F_GET_SEALS", 1034)


def let_in(sock: socket.socket, allowed: bool) -> None:
    """Let the peer pass descriptors over a Unix socket, or have the kernel refuse its sending them.

    Before Linux 6.16 the kernel cannot: what comes then must be discarded.
    """
    if sys.platform != "linux":
        return
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, int(allowed))
    except OSError:
        pass


def discard(fds: Sequence[int]) -> None:
    """Close descriptors of a peer, without waiting for it."""
    slow: list[int] = []
    for fd in fds:
        if _is_memory(fd):
            os.close(fd)
        else:
            slow.append(fd)
    if not slow:
        return
    try:
        threading.Thread(target=_close, args=(slow,), daemon=True, name="l5-closer").start()
    except RuntimeError:  # no threads here: the interpreter ends, or is one of several
        _close(slow)


def _is_memory(fd: int) -> bool:
    """Tell whether this is a memfd, which closes at once; asks nobody but the kernel."""
    try:
        fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError:
        return False
    return True


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # what a file system reports at the end of a file is nothing to us
