"""Descriptors that come over a Unix socket beside its bytes."""

from __future__ import annotations

import array
import socket
from typing import Final

from .._descriptors import discard, let_in
from .._errors import RemoteProtocolError

FDS_MAX: Final = 8
"""Most descriptors that one `receive` takes; no upgrade needs more."""

_FDS_OF_MESSAGE: Final = 253
_UNREAD_MAX: Final = 1000
"""More messages than the kernel queues for one Unix socket."""
_FD_BYTES: Final = array.array("i").itemsize
_CLOSE_ON_EXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_DONT_WAIT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)


def receive_with_fds(sock: socket.socket, max_bytes: int) -> tuple[bytes, list[int]]:
    """Receive bytes and at most `FDS_MAX` descriptors; anything else ends in an error.

    Where this process may open no more files the descriptors are lost, and none is returned.
    """
    data, fds, cut, strange = _receive(sock, max_bytes, FDS_MAX)
    if cut and not strange and len(fds) < FDS_MAX:
        discard(fds)  # the peer did not send too many, this process has no room for them
        return data, []
    if cut or strange or len(fds) > FDS_MAX:
        discard(fds)
        raise RemoteProtocolError(
            f"the peer sent more than {FDS_MAX} descriptors or unknown control messages"
        )
    return data, list(fds)


def receive_batch(sock: socket.socket, max_bytes: int) -> tuple[bytes, list[int] | None]:
    """Receive bytes, and descriptors that came with them: None if none, empty if they got lost."""
    data, fds, cut, strange = _receive(sock, max_bytes, FDS_MAX)
    if strange or len(fds) > FDS_MAX or (cut and len(fds) == FDS_MAX):
        discard(fds)
        raise RemoteProtocolError(
            f"the peer sent more than {FDS_MAX} descriptors or unknown control messages"
        )
    if cut:
        discard(fds)
        return data, []
    return data, list(fds) or None


def _receive(
    sock: socket.socket, max_bytes: int, fds_max: int, flags: int = 0
) -> tuple[bytes, array.array[int], bool, bool]:
    """Receive bytes and descriptors; tell whether some were cut off, or something is strange."""
    space = socket.CMSG_SPACE(fds_max * _FD_BYTES)
    data, ancillary, found, _ = sock.recvmsg(max_bytes, space, _CLOSE_ON_EXEC | flags)
    fds = array.array("i")
    strange = False
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
        else:
            strange = True
    return data, fds, bool(found & socket.MSG_CTRUNC), strange


def discard_unread(sock: socket.socket) -> None:
    """Take out what nobody asked for: closing a socket closes descriptors within it, and waits."""
    let_in(sock, False)
    try:
        for _ in range(_UNREAD_MAX):
            data, fds, _, _ = _receive(sock, 1 << 16, _FDS_OF_MESSAGE, _DONT_WAIT)
            discard(fds)
            if not data:
                return
    except OSError:
        pass
