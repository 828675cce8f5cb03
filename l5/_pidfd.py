"""A descriptor of the process at the other end of a Unix socket: readable once that has ended."""

from __future__ import annotations

import os
import socket
import stat
import struct

_SO_PEERPIDFD = 77


def peer_pidfd(fd: int, claimed_pid: int, *, connected: bool) -> tuple[int, ...]:
    """Return a pidfd of the process at the other end of a Unix socket, if it is surely that one.

    A forked child of a dead peer keeps its socket open, so end-of-file does not tell.  Of a peer
    that `connected` the kernel names the process that did.  Of the others it names who *listened*;
    with pre-forked workers that is another process than the one that answers, hence the comparison
    with what the peer says of itself, which in a PID namespace within ours is another number.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return ()
        with socket.socket(fileno=os.dup(fd)) as sock:
            if sock.family != socket.AF_UNIX:
                return ()
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = struct.unpack("iII", credentials)[0]
            # 0: it cannot be seen from here, as from one container into another.
            if pid == os.getpid() or (pid == 0 and not connected):
                return ()
            try:
                raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
                pidfd = int.from_bytes(raw, "little")
            except OSError:
                return (os.pidfd_open(pid),) if pid == claimed_pid else ()
            if pid in (0, claimed_pid) or _own_pid(pidfd) == claimed_pid:
                return (pidfd,)
            os.close(pidfd)
    except (OSError, AttributeError):
        pass
    return ()


def _own_pid(pidfd: int) -> int | None:
    """Return the number by which the process of a pidfd knows itself; None if that is not told."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}") as lines:
            numbers = [line.split() for line in lines if line.startswith("NSpid:")]
        return int(numbers[0][-1])
    except (OSError, ValueError, IndexError):
        return None
