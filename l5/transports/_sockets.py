"""Links and listeners over non-blocking sockets, shared by tcp, unix and inproc."""

from __future__ import annotations

import array
import errno
import logging
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import anyio.lowlevel

from .._descriptors import discard, let_in
from .._errors import RemoteProtocolError
from .._limits import Complaint, lack
from .._loop import Descriptor
from ..abc import Channel, Link, LinkListener, PeerInfo
from ._parting import part, resets
from ._passing import FDS_MAX, discard_unread, receive_with_fds
from ._stream import StreamChannel, TLSChannel
from ._tls import TLSSocket

__all__ = [
    "FDS_MAX",
    "SocketLink",
    "SocketListener",
    "TLSLink",
    "connect_socket",
    "peer_credentials",
]

_NO_SIGNAL: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)
_CREDENTIALS: Final = struct.Struct("iII")
_FULL_PAUSE_S: Final = 0.1
_logger = logging.getLogger("l5.transports")


class SocketLink(Link):
    """A link over a non-blocking stream socket, which it owns."""

    def __init__(
        self, sock: socket.socket, transport: str, peer: PeerInfo, *, passes_fds: bool = False
    ) -> None:
        sock.setblocking(False)
        self.transport = transport
        self.peer = peer
        self._socket = sock
        self._passes_fds = passes_fds

    def let_fds_in(self, allowed: bool) -> None:
        if self._passes_fds:
            let_in(self._socket, allowed)

    @property
    def passes_fds(self) -> bool:
        return self._passes_fds

    @property
    def local_host(self) -> str | None:
        return local_host(self._socket)

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        rest = memoryview(data)
        ancillary: list[tuple[int, int, array.array[int]]] = []
        if fds:
            self._check_fds(data, fds)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        while rest:
            try:
                if ancillary:
                    sent = self._socket.sendmsg((rest,), ancillary, _NO_SIGNAL)
                else:
                    sent = self._socket.send(rest, _NO_SIGNAL)
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise broken(self._socket) from error
            else:
                ancillary = []
                rest = rest[sent:]

    def _check_fds(self, data: bytes, fds: Sequence[int]) -> None:
        if not self._passes_fds:
            raise ValueError(f"a {self.transport} link cannot pass descriptors")
        if not data or len(fds) > FDS_MAX:
            raise ValueError(f"1 to {FDS_MAX} descriptors travel with at least one byte of data")

    async def receive(self, max_bytes: int) -> tuple[bytes, list[int]]:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                if self._passes_fds:
                    data, fds = receive_with_fds(self._socket, max_bytes)
                else:
                    data, fds = self._socket.recv(max_bytes), []
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise broken(self._socket) from error
            else:
                if not data:
                    discard(fds)
                    raise anyio.EndOfStream
                return data, fds

    def into_channel(self, *, send_limit: int, receive_limit: int) -> Channel:
        return StreamChannel(
            self._socket, self.transport, send_limit=send_limit, receive_limit=receive_limit
        )

    def detach(self) -> int:
        return self._socket.detach()

    def abort(self) -> None:
        if self._passes_fds:
            discard_unread(self._socket)
        elif self._socket.fileno() >= 0 and resets(self._socket):
            part(self._socket)  # the reason that was given may be on its way
        close_socket(self._socket)


class TLSLink(Link):
    """A link over TLS.  The accepting side shakes hands at its first `send` or `receive`."""

    def __init__(
        self,
        sock: socket.socket,
        transport: str,
        peer: PeerInfo,
        context: ssl.SSLContext,
        *,
        server_name: str | None,
    ) -> None:
        sock.setblocking(False)
        self.transport = transport
        self.peer = peer
        self._tls = TLSSocket(sock, context, server_name=server_name)
        self._established = False

    @property
    def passes_fds(self) -> bool:
        return False

    async def handshake(self) -> None:
        """Shake hands; `ssl.SSLError` tells why that failed."""
        while not self._tls.handshake():
            await self._wait()
        self._established = True

    async def _ready(self) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not self._established:
            try:
                await self.handshake()
            except ssl.SSLError as error:
                raise RemoteProtocolError(f"the TLS handshake failed: {error}") from error
            except OSError as error:
                raise broken(self._tls.socket) from error

    async def _wait(self) -> None:
        if self._tls.wants_write:
            await anyio.wait_writable(self._tls.socket)
        else:
            await anyio.wait_readable(self._tls.socket)

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        if fds:
            raise ValueError("a TLS link cannot pass descriptors")
        if self._tls.plain:  # a peer that was refused because it speaks no TLS: it reads why
            await SocketLink(self._tls.socket, self.transport, self.peer).send(data)
            return
        await self._ready()
        try:
            while not self._tls.flush():
                await self._wait()
            self._tls.send(data)
            while not self._tls.flush():
                await self._wait()
        except OSError as error:
            raise broken(self._tls.socket) from error

    async def receive(self, max_bytes: int) -> tuple[bytes, list[int]]:
        await self._ready()
        while True:
            try:
                data = self._tls.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._tls.socket)
            except OSError as error:
                raise broken(self._tls.socket) from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data, []

    def into_channel(self, *, send_limit: int, receive_limit: int) -> Channel:
        return TLSChannel(
            self._tls, self.transport, send_limit=send_limit, receive_limit=receive_limit
        )

    def detach(self) -> int:
        raise ValueError("the socket of a TLS link cannot be given up")

    def abort(self) -> None:
        if self._tls.socket.fileno() >= 0:
            part(self._tls.socket)
        close_socket(self._tls.socket)


class SocketListener(LinkListener):
    """Accept from one or more listening sockets, which it owns.

    Running out of descriptors or memory never ends it: it logs, waits a moment and goes on.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        url: str,
        make_link: Callable[[socket.socket], Link],
        clean_up: Callable[[], None] | None = None,
    ) -> None:
        for sock in sockets:
            sock.setblocking(False)
        self._sockets = list(sockets)
        self._url = url
        self._make_link = make_link
        self._clean_up = clean_up
        self._descriptors: list[Descriptor] = []
        self._closed = False
        self._complaint = Complaint(_logger)

    @property
    def url(self) -> str:
        return self._url

    async def accept(self) -> Link:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._closed:
            for index in range(len(self._sockets)):
                try:
                    sock, _ = self._sockets[index].accept()
                except BlockingIOError:
                    continue
                except OSError as error:
                    await self._endure(error)
                    continue
                # Who has just been served is asked last the next time.
                self._sockets.append(self._sockets.pop(index))
                link = self._link_of(sock)
                if link is not None:
                    return link
                break
            else:
                await self._wait()
        raise anyio.ClosedResourceError

    def _link_of(self, sock: socket.socket) -> Link | None:
        try:
            return self._make_link(sock)
        except OSError:  # it was gone before we looked at it
            sock.close()
            return None

    async def _endure(self, error: OSError) -> None:
        """Wait out a lack of resources; other errors concern one connection that is gone."""
        reason = lack(error)
        if self._closed or reason is None:
            return
        self._complaint.say("%s cannot accept connections: %s; it tries on", self._url, reason)
        await anyio.sleep(_FULL_PAUSE_S)

    async def _wait(self) -> None:
        if not self._descriptors:
            self._descriptors = [Descriptor(sock.fileno()) for sock in self._sockets]
        if len(self._descriptors) == 1:
            await self._descriptors[0].wait_readable()
            return
        async with anyio.create_task_group() as group:
            for descriptor in self._descriptors:
                group.start_soon(_wait_for_one, descriptor, group.cancel_scope)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for descriptor in self._descriptors:
            descriptor.close()
        if self._clean_up is not None:
            self._clean_up()
        for sock in self._sockets:
            sock.close()


async def _wait_for_one(descriptor: Descriptor, scope: anyio.CancelScope) -> None:
    try:
        await descriptor.wait_readable()
    except anyio.ClosedResourceError:
        pass  # `accept` sees it itself
    scope.cancel()


async def connect_socket(sock: socket.socket, target: str | bytes | tuple[str, int]) -> None:
    """Connect a non-blocking socket; `OSError` as from a blocking one."""
    pause = 0.001
    while True:
        try:
            sock.connect(target)
        except BlockingIOError as error:
            if error.errno != errno.EAGAIN:
                break  # in progress
            # A Unix socket whose queue is full has no event for "try again".
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.05)
        else:
            return
    await anyio.wait_writable(sock)
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def peer_credentials(sock: socket.socket) -> tuple[int | None, int | None]:
    """Return uid and pid of the process at the other end of a Unix socket, None if unknown."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None or sys.platform != "linux":
        return None, None
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return uid, pid or None


def local_host(sock: socket.socket) -> str | None:
    """Return the IP address of this end, without a zone; None for a socket that has none."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return str(sock.getsockname()[0]).partition("%")[0]


def close_socket(sock: socket.socket) -> None:
    """Close at once, waking a task that waits for this socket."""
    if sock.fileno() < 0:
        return
    try:
        anyio.notify_closing(sock)
    except RuntimeError:
        pass  # no event loop runs here, so nobody waits in this thread
    sock.close()


def broken(sock: socket.socket) -> Exception:
    """Return the error for a socket that failed: closed by us, or broken."""
    return anyio.ClosedResourceError() if sock.fileno() < 0 else anyio.BrokenResourceError()
