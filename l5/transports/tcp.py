"""TCP, with TLS for `l5s://`."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import attrs

from .._errors import AddressError
from ..abc import BootstrapTransport, Link, LinkListener, PeerInfo, Probe
from ._sockets import SocketLink, SocketListener, TLSLink, connect_socket

if TYPE_CHECKING:
    from .._address import Address
    from .._options import Options

__all__ = ["TCPTransport"]

_DEFAULT_BACKLOG: Final = 128
_SAME_PORT_TRIES: Final = 16
_Target = tuple[int, tuple[str, int]]
"""Address family, and host number and port."""


class TCPTransport(BootstrapTransport):
    """Connections over TCP; small frames leave at once (`TCP_NODELAY`)."""

    name: ClassVar[str] = "tcp"

    def probe(self) -> Probe:
        """Answer yes: every system has TCP."""
        return Probe(True)

    async def connect(self, address: Address, options: Options) -> Link:
        """Try each address of the host in turn; the `OSError` tells of all that failed."""
        targets = await _resolve(address)
        failures: list[OSError] = []
        for tries_left, target in zip(range(len(targets), 0, -1), targets, strict=True):
            # An address that swallows packets must not use up the time of those after it.
            seconds = options.connect_timeout / len(targets) if tries_left > 1 else None
            try:
                with anyio.fail_after(seconds):
                    sock = await _connect_one(target)
            except TimeoutError:
                failures.append(OSError(errno.ETIMEDOUT, f"no answer from {_text(target[1])}"))
            except OSError as error:
                failures.append(_named(error, target[1]))
            else:
                return await self._link(sock, address, options)
        if len(failures) == 1:
            raise failures[0]
        raise OSError(failures[0].errno, "; ".join(str(failure.strerror) for failure in failures))

    async def _link(self, sock: socket.socket, address: Address, options: Options) -> Link:
        if not address.tls:
            return SocketLink(sock, self.name, _peer_of(sock, tls=False))
        context = options.ssl_context or ssl.create_default_context()
        peer = _peer_of(sock, tls=True)
        link = TLSLink(sock, self.name, peer, context, server_name=address.host)
        try:
            await link.handshake()
        except BaseException:
            link.abort()
            raise
        return link

    async def listen(self, address: Address, options: Options) -> LinkListener:
        """Listen at every address of the host, all with one port, which 0 lets the system choose.

        Raises `AddressError` when the address asks for TLS and there is no `ssl_context`.
        """
        context = options.ssl_context if address.tls else None
        if address.tls and context is None:
            raise AddressError(
                f"listening at {address.redacted} needs a certificate: pass ssl_context="
                "ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) with its load_cert_chain done"
            )
        sockets = _bind_all(await _resolve(address, passive=True))
        try:
            for sock in sockets:
                sock.listen(getattr(options, "backlog", _DEFAULT_BACKLOG))
        except BaseException:
            _close_all(sockets)
            raise
        port: int = sockets[0].getsockname()[1]

        def make_link(sock: socket.socket) -> Link:
            _tune(sock)
            peer = _peer_of(sock, tls=context is not None)
            if context is None:
                return SocketLink(sock, self.name, peer)
            return TLSLink(sock, self.name, peer, context, server_name=None)

        return SocketListener(sockets, attrs.evolve(address, port=port, options={}).url, make_link)


async def _resolve(address: Address, *, passive: bool = False) -> list[_Target]:
    """Return the addresses of a host, each once, in the resolver's order."""
    try:
        found = await anyio.getaddrinfo(
            address.host,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE if passive else 0,
        )
    except socket.gaierror as error:
        raise OSError(
            errno.ENOENT, f"cannot find host {address.host!r}: {error.strerror}"
        ) from error
    families = (socket.AF_INET, socket.AF_INET6)
    return list(dict.fromkeys((int(item[0]), item[4]) for item in found if item[0] in families))


async def _connect_one(target: _Target) -> socket.socket:
    family, name = target
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _tune(sock)
        await connect_socket(sock, name)
        if sock.getsockname() == sock.getpeername():
            # Linux can connect a port of the ephemeral range to itself when nobody listens.
            raise OSError(errno.ECONNREFUSED, "Connection refused")
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_all(targets: list[_Target]) -> list[socket.socket]:
    """Bind every address, all to one port, and skip what this machine lacks (such as IPv6)."""
    wanted_any = any(name[1] == 0 for _, name in targets)
    for tries_left in range(_SAME_PORT_TRIES, 0, -1):
        try:
            return _bind_once(targets)
        except OSError as error:
            # The port that the first address was given may be taken at the second.
            again = wanted_any and len(targets) > 1 and error.errno == errno.EADDRINUSE
            if not again or tries_left == 1:
                raise
    raise AssertionError("unreachable")


def _bind_once(targets: list[_Target]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    port = 0
    for family, name in targets:
        host = name[0]
        try:
            sock = _bind_one(family, (host, name[1] or port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                missing = error
                continue
            _close_all(sockets)
            raise
        sockets.append(sock)
        port = port or sock.getsockname()[1]
    if not sockets:
        raise missing or OSError(errno.EADDRNOTAVAIL, "the host has no address to listen at")
    return sockets


def _bind_one(family: int, name: tuple[str, int]) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _named(error, name) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(name)
    except OSError as error:
        sock.close()
        raise _named(error, name) from None
    return sock


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _peer_of(sock: socket.socket, *, tls: bool) -> PeerInfo:
    peer: tuple[Any, ...] = sock.getpeername()
    own: tuple[Any, ...] = sock.getsockname()
    loopback = _is_loopback(peer[0]) and _is_loopback(own[0])
    return PeerInfo(_text(peer), loopback=loopback, tls=tls)


def _is_loopback(host: str) -> bool:
    number = ipaddress.ip_address(host)
    mapped = getattr(number, "ipv4_mapped", None)
    return (mapped or number).is_loopback


def _text(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _named(error: OSError, name: tuple[str, int]) -> OSError:
    return OSError(error.errno, f"{_text(name)}: {error.strerror or error}")


def _close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
