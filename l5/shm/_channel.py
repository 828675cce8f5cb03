"""A frame channel over two rings; the bootstrap socket is its doorbell and its sign of life."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio

from ..abc import Channel, Frame

if TYPE_CHECKING:
    from .._fast import Ring
    from ..abc import Buffer


class RingChannel(Channel):
    """See `l5/native/channel.h` for the memory and its orderings."""

    transport = "shm"
    one_copy = True

    def __init__(self, ring: Ring, sock: socket.socket, frame_limit: int) -> None:
        self.frame_limit = frame_limit
        self.ring = ring
        self._socket = sock

    def poll(self) -> bool:
        return self.ring.poll()

    def arm(self, *, space: bool = False) -> bool:
        return self.ring.arm(space)

    def disarm(self) -> None:
        self.ring.disarm()

    def fileno(self) -> int:
        return self._socket.fileno()

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        return self.ring.try_send(kind, flags, id, payload)

    def try_receive(self) -> Frame | None:
        return self.ring.try_receive()  # type: ignore[return-value]

    def on_event(self) -> None:
        """Drain the doorbell: what was rung for stands in the ring."""
        if self.ring.hush() is False:
            raise anyio.EndOfStream

    def close(self) -> None:
        self.ring.close()
        # step 54 (both, shm): the memory is let go, and the socket is open
        self._socket.close()

    def forget(self) -> None:
        """See `Channel.forget`."""
        self.ring.forget()
        self._socket.close()
