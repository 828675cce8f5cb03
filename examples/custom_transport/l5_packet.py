"""`l5+packet:///path`: frames as datagrams over Unix sockets of type SOCK_SEQPACKET."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

import l5
from l5.abc import (
    BootstrapTransport,
    Channel,
    Frame,
    Link,
    LinkListener,
    PeerInfo,
    Probe,
)

if TYPE_CHECKING:
    from l5.abc import Address, Buffer

HEADER = struct.Struct("<BBQ")  # kind, flags, id; the size is the datagram's
FRAME_BYTES_MAX = 64 * 1024  # a datagram must fit into the socket's send buffer
CREDENTIALS = struct.Struct("iII")


class PacketChannel(Channel):
    """One datagram is one frame: nothing to reassemble, nothing half sent."""

    transport = "packet"
    frame_limit = FRAME_BYTES_MAX

    def __init__(self, sock: socket.socket, receive_limit: int) -> None:
        self._socket = sock
        self._receive_limit = min(receive_limit, FRAME_BYTES_MAX)
        self._blocked = False
        self._closed = False

    # -- sending

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        try:
            self._socket.sendmsg([HEADER.pack(kind, flags, id), payload], [], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self._blocked = True  # ask to be woken when there is room
            return False
        except OSError as error:
            raise self._gone() from error
        self._blocked = False
        return True

    @property
    def wants_write(self) -> bool:
        return self._blocked

    def flush(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        self._blocked = not poll.poll(0)
        return not self._blocked

    # -- receiving

    def try_receive(self) -> Frame | None:
        try:
            data, flags = _receive(self._socket, HEADER.size + self._receive_limit)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._gone() from error
        if not data:
            raise anyio.EndOfStream
        if flags & socket.MSG_TRUNC or len(data) < HEADER.size:
            raise l5.RemoteProtocolError(f"the peer sent a datagram of {len(data)} bytes or more")
        kind, frame_flags, id = HEADER.unpack_from(data)
        if not 1 <= kind <= 9:
            raise l5.RemoteProtocolError(f"the peer sent a frame of unknown kind {kind}")
        return Frame(kind, frame_flags, id, data[HEADER.size :])

    def _gone(self) -> Exception:
        return anyio.ClosedResourceError() if self._closed else anyio.BrokenResourceError()

    # -- polling: the socket is level-triggered, so arming costs nothing

    def poll(self) -> bool:
        return False  # nothing is buffered here; the descriptor tells

    def arm(self, *, space: bool = False) -> bool:
        return not space or self._blocked

    def disarm(self) -> None:
        pass

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._closed = True
        self._socket.close()


class PacketLink(Link):
    """The socket while the hellos travel over it."""

    transport = "packet"

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * FRAME_BYTES_MAX)
        self._socket = sock
        self._rest = b""
        options = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, uid, _ = CREDENTIALS.unpack(options)
        self.peer = PeerInfo(str(sock.getpeername() or ""), uid, pid or None, loopback=True)

    @property
    def passes_fds(self) -> bool:
        return False

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self._socket.send(data, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def receive(self, max_bytes: int) -> tuple[bytes, list[int]]:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._rest:
            try:
                self._rest, _ = _receive(self._socket, FRAME_BYTES_MAX)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error
            else:
                if not self._rest:
                    raise anyio.EndOfStream
        # Hellos are read in parts, datagrams only whole: keep what was not asked for.
        part, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return part, []

    def into_channel(self, *, send_limit: int, receive_limit: int) -> Channel:
        if self._rest:
            raise l5.RemoteProtocolError("the peer sent more than a hello in one datagram")
        return PacketChannel(self._socket, receive_limit)

    def detach(self) -> int:
        raise ValueError("nothing upgrades from here")

    def abort(self) -> None:
        _close(self._socket)


class PacketListener(LinkListener):
    """Accept at a path, which is removed again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(path)
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    @property
    def url(self) -> str:
        return f"l5+packet://{self._path}"

    async def accept(self) -> Link:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while self._socket.fileno() >= 0:
            try:
                return PacketLink(self._socket.accept()[0])
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
        raise anyio.ClosedResourceError

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            _close(self._socket)
            os.unlink(self._path)


class PacketTransport(BootstrapTransport):
    """What the entry point names."""

    name = "packet"

    def probe(self) -> Probe:
        if hasattr(socket, "SO_PEERCRED"):
            return Probe(True)
        return Probe(False, "SOCK_SEQPACKET with peer credentials needs Linux; use l5+tcp://")

    async def connect(self, address: Address, options: l5.Options) -> Link:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(address.path or "")
                    return PacketLink(sock)
                except BlockingIOError:  # the listener's queue is full, and no event tells when not
                    await anyio.sleep(0.01)
        except BaseException:
            sock.close()
            raise

    async def listen(self, address: Address, options: l5.Options) -> LinkListener:
        await anyio.lowlevel.checkpoint_if_cancelled()
        return PacketListener(address.path or "")


def _receive(sock: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    try:
        data, _, flags, _ = sock.recvmsg(max_bytes)
    except ConnectionResetError:
        # The peer closed before it had read everything.  Sockets of this type say so once, before
        # they hand out what the peer had sent.
        data, _, flags, _ = sock.recvmsg(max_bytes)
    return data, flags


def _close(sock: socket.socket) -> None:
    """Close, and wake the task that waits for it."""
    if sock.fileno() < 0:
        return
    try:
        anyio.notify_closing(sock)
    except RuntimeError:
        pass  # no event loop runs here, so nobody waits
    sock.close()
