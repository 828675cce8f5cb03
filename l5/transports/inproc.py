"""Connections within one process, also between event loops in different threads.

    end A                                                       end B
    try_send --> | _Queue: deque, bounded by bytes | --> try_receive
    on_event <--- socketpair: one byte = "look again" <--- armed ends only

Links are socketpairs, so the same hello runs over them.  Once both have turned into channels the
frames go through two queues and the socketpair is only the doorbell.  The rule of `Pollable` makes
it lossless: an end stores its flag and looks again before it sleeps, the other acts and looks at
the flag afterwards.  Both orders are kept by the GIL.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import anyio
import anyio.lowlevel

from .._errors import MessageTooLarge, RemoteProtocolError
from .._frames import Kind
from .._loop import Descriptor
from ..abc import BootstrapTransport, Channel, Frame, Link, LinkListener, PeerInfo, Probe
from ._sockets import SocketLink

if TYPE_CHECKING:
    from .._address import Address
    from .._options import Options
    from ..abc import Buffer

__all__ = ["InprocTransport"]

_FRAME_BYTES: Final = 64
"""What a queued frame counts beside its payload."""
_QUEUE_BYTES: Final = 1 << 20
_DEFAULT_BACKLOG: Final = 128
_PAUSE_MAX_S: Final = 0.05
_new_tuple: Any = cast("Any", tuple).__new__


class _Queue:
    """Frames on their way in one direction: one end appends, the other takes.

    Each counter has one writer; their difference is what is queued.
    """

    __slots__ = ("closed", "frames", "receiver_armed", "sender_waits_for", "sent", "taken")

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.sent: int = 0
        self.taken: int = 0
        self.receiver_armed: bool = False
        self.sender_waits_for: int = 0
        """Bytes for which an armed sender wants room; 0 when it does not wait."""
        self.closed: bool = False

    def fits(self, cost: int) -> bool:
        """Tell whether a frame may be queued; a frame of any size fits an empty queue."""
        queued = self.sent - self.taken
        return queued == 0 or queued + cost <= _QUEUE_BYTES


class InprocChannel(Channel):
    """One end of a connection within this process."""

    transport = "inproc"

    def __init__(
        self,
        bell: socket.socket,
        outgoing: _Queue,
        incoming: _Queue,
        *,
        send_limit: int,
        receive_limit: int,
    ) -> None:
        self._bell = bell
        self._outgoing = outgoing
        self._incoming = incoming
        self._send_limit = send_limit
        self._receive_limit = receive_limit
        self._refused = 0
        self._closed = False

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        data = payload if type(payload) is bytes else bytes(payload)
        if len(data) > self._send_limit:
            raise MessageTooLarge(len(data), self._send_limit)
        queue = self._outgoing
        if self._closed:
            raise anyio.ClosedResourceError
        if self._incoming.closed:
            raise anyio.BrokenResourceError
        cost = len(data) + _FRAME_BYTES
        if not queue.fits(cost) and (kind != Kind.CLOSE or flags):  # goodbye always finds room
            self._refused = cost
            return False
        self._refused = 0
        queue.sent += cost
        queue.frames.append(_new_tuple(Frame, (kind, flags, id, data)))
        if queue.receiver_armed:
            queue.receiver_armed = False
            self._ring()
        return True

    def try_receive(self) -> Frame | None:
        queue = self._incoming
        try:
            frame = queue.frames.popleft()
        except IndexError:
            return self._nothing()
        size = len(frame[3])
        if size > self._receive_limit:
            raise RemoteProtocolError(
                f"the peer sent a frame of {size} bytes where {self._receive_limit} were agreed"
            )
        queue.taken += size + _FRAME_BYTES
        if queue.sender_waits_for and queue.fits(queue.sender_waits_for):
            queue.sender_waits_for = 0
            self._ring()
        return frame

    def _nothing(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        # Closing is stored after the last frame, so look once more after having seen it.
        if self._incoming.closed and not self._incoming.frames:
            raise anyio.EndOfStream

    def _ring(self) -> None:
        # A full socket has woken the other end already; a closed one needs no waking.
        try:
            self._bell.send(b"\0")
        except OSError:
            pass

    def poll(self) -> bool:
        return bool(self._incoming.frames) or self._incoming.closed

    def arm(self, *, space: bool = False) -> bool:
        self._incoming.receiver_armed = True
        if space:
            self._outgoing.sender_waits_for = self._refused or _FRAME_BYTES
        if self.poll() or (space and self._outgoing.fits(self._outgoing.sender_waits_for)):
            self.disarm()
            return False
        return True

    def disarm(self) -> None:
        self._incoming.receiver_armed = False
        self._outgoing.sender_waits_for = 0

    def on_event(self) -> None:
        try:
            self._bell.recv(4096)
        except OSError:
            pass  # nobody rang after all; whether the other end is gone is told by its queue

    def fileno(self) -> int:
        return self._bell.fileno()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.closed = True
            self._bell.close()  # its end of file wakes the other end


class _InprocLink(SocketLink):
    """A socketpair for the hellos; both ends share the queues."""

    def __init__(self, sock: socket.socket, name: str, outgoing: _Queue, incoming: _Queue) -> None:
        peer = PeerInfo(name, uid=os.geteuid(), pid=os.getpid(), loopback=True)
        super().__init__(sock, "inproc", peer)
        self._outgoing = outgoing
        self._incoming = incoming

    def into_channel(self, *, send_limit: int, receive_limit: int) -> Channel:
        return InprocChannel(
            self._socket,
            self._outgoing,
            self._incoming,
            send_limit=send_limit,
            receive_limit=receive_limit,
        )

    def abort(self) -> None:
        self._outgoing.closed = True
        super().abort()


class _InprocListener(LinkListener):
    """Links wait in a deque; a byte on a socketpair per link wakes `accept`."""

    def __init__(self, name: str, url: str, backlog: int) -> None:
        self._name = name
        self._url = url
        self._backlog = backlog
        self._pending: deque[Link] = deque()
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._descriptor: Descriptor | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return self._url

    def offer(self, link: Link) -> bool:
        """(Any thread, under the registry's lock) queue a link; False when the queue is full."""
        if len(self._pending) >= self._backlog:
            return False
        self._pending.append(link)
        with suppress(BlockingIOError):
            self._button.send(b"\0")
        return True

    async def accept(self) -> Link:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._closed:
            if self._pending:
                return self._pending.popleft()
            if self._descriptor is None:
                self._descriptor = Descriptor(self._bell.fileno())
            await self._descriptor.wait_readable()
            with suppress(OSError):
                self._bell.recv(4096)
        raise anyio.ClosedResourceError

    def close(self) -> None:
        with _lock:
            if self._closed:
                return
            self._closed = True
            if _listeners.get(self._name) is self:
                del _listeners[self._name]
        if self._descriptor is not None:
            self._descriptor.close()
        self._bell.close()
        self._button.close()
        while self._pending:
            self._pending.popleft().abort()


_listeners: dict[str, _InprocListener] = {}
_lock = threading.Lock()


class InprocTransport(BootstrapTransport):
    """Connections within this process, by name."""

    name: ClassVar[str] = "inproc"

    def probe(self) -> Probe:
        """Answer yes."""
        return Probe(True)

    async def connect(self, address: Address, options: Options) -> Link:
        """Link to the listener of that name, waiting while its queue is full."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        name = address.name or ""
        ours, theirs = _make_links(name)
        pause = 0.001
        try:
            while not _offer(name, theirs):
                await anyio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_S)
        except BaseException:
            ours.abort()
            theirs.abort()
            raise
        return ours

    async def listen(self, address: Address, options: Options) -> LinkListener:
        """Take the name, or raise `OSError` (`EADDRINUSE`) if it is taken."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        name = address.name or ""
        url = f"{address.scheme}://{address.location}"
        listener = _InprocListener(name, url, getattr(options, "backlog", _DEFAULT_BACKLOG))
        with _lock:
            taken = name in _listeners
            if not taken:
                _listeners[name] = listener
        if taken:
            listener.close()
            raise OSError(
                errno.EADDRINUSE, f"{url}: a listener of this process has that name already"
            )
        return listener


def _offer(name: str, link: Link) -> bool:
    with _lock:
        listener = _listeners.get(name)
        if listener is None:
            known = ", ".join(sorted(_listeners)) or "none"
            raise ConnectionRefusedError(
                errno.ECONNREFUSED,
                f"no listener of this process is called {name!r}; there are: {known}",
            )
        return listener.offer(link)


def _make_links(name: str) -> tuple[Link, Link]:
    near, far = socket.socketpair()
    there, back = _Queue(), _Queue()
    return _InprocLink(near, name, there, back), _InprocLink(far, name, back, there)
