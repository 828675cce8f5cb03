"""Shared memory: the upgrade of Unix sockets, and of TCP on one host through a rendezvous.

The client makes the memory (its own, within its own limits), fills and seals it, and passes the
descriptor; the server verifies it before it maps it (L5, section III-A.1).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from .. import native
from .._descriptors import discard
from .._errors import RemoteProtocolError, TransportUnavailable
from .._host import memfd_available
from .._limits import explain, lack
from .._options import size_text
from ..abc import (
    Channel,
    Link,
    Probe,
    UpgradeAttempt,
    UpgradeMessage,
    UpgradeTransport,
)
from ..shm._channel import RingChannel
from ..shm._headroom import memory_headroom
from ._memory_socket import SharedRegions

RING_BYTES_MAX = 256 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SPARE_BYTES = 1 << 20
"""What an allocation must leave free in its cgroup: page tables and what else runs there."""


def _segment_bytes(ring_bytes: int) -> int:
    return _PAGE_BYTES + 2 * ring_bytes


class SharedMemoryTransport(UpgradeTransport):
    """`shm`: two rings in a sealed memfd."""

    name = "shm"

    def probe(self) -> Probe:
        """See `Transport.probe`."""
        if not native.available:
            return Probe(False, native.reason)
        usable, reason = memfd_available()
        details = {"headroom_bytes": memory_headroom(), "page_bytes": _PAGE_BYTES}
        return Probe(usable, reason, details)

    def for_memory(self) -> UpgradeTransport:
        """See `UpgradeTransport.for_memory`."""
        return SharedRegions(self.probe)

    def _require(self) -> None:
        probe = self.probe()
        if not probe.usable:
            raise TransportUnavailable(self.name, probe.reason)

    def offer(self, link: Link, options: Any) -> Mapping[str, int | str | bytes | bool]:
        """See `UpgradeTransport.offer`."""
        self._require()
        return {"ring_bytes": options.ring_bytes, "page_bytes": _PAGE_BYTES}

    def judge(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Any
    ) -> str | None:
        """See `UpgradeTransport.judge`."""
        ring_bytes, page_bytes = params.get("ring_bytes"), params.get("page_bytes")
        if page_bytes != _PAGE_BYTES:
            return f"pages of {page_bytes} bytes there, of {_PAGE_BYTES} here"
        return _ring_problem(ring_bytes, options)

    def memory_bytes(self, params: Mapping[str, int | str | bytes | bool]) -> int:
        """See `UpgradeTransport.memory_bytes`."""
        ring_bytes = params.get("ring_bytes")
        return _segment_bytes(ring_bytes) if isinstance(ring_bytes, int) else 0

    def initiate(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Any
    ) -> UpgradeAttempt:
        """See `UpgradeTransport.initiate`."""
        self._require()
        if not link.passes_fds:
            raise TransportUnavailable(self.name, "this socket cannot pass descriptors")
        needed = _segment_bytes(options.ring_bytes) + _SPARE_BYTES
        headroom = memory_headroom()
        if headroom is not None and headroom < needed:
            raise TransportUnavailable(
                self.name,
                f"the memory cgroup of this process has {headroom} bytes left, "
                f"the rings need {needed}: raise its limit or ask for smaller rings (ring=...)",
            )
        fd = native.lib.l5_segment_create(options.ring_bytes)
        if fd < 0:
            raise TransportUnavailable(self.name, f"the rings cannot be made: {_words(-fd)}")
        message = UpgradeMessage({"ring_bytes": options.ring_bytes}, [fd])
        return _Attempt(fd, options.ring_bytes, server=False, message=message)

    def join(
        self,
        link: Link,
        params: Mapping[str, int | str | bytes | bool],
        fds: Sequence[int],
        options: Any,
    ) -> UpgradeAttempt:
        """See `UpgradeTransport.join`."""
        try:
            self._require()
            if not fds:
                lost = lack(OSError(errno.EMFILE, ""))
                raise TransportUnavailable(self.name, f"no descriptor arrived: perhaps {lost}")
            if len(fds) != 1:
                raise TransportUnavailable(self.name, f"{len(fds)} descriptors came instead of one")
            ring_bytes = params.get("ring_bytes")
            problem = _ring_problem(ring_bytes, options)
            if problem is not None:
                raise TransportUnavailable(self.name, problem)
        except TransportUnavailable:
            discard(fds)
            raise
        assert isinstance(ring_bytes, int)
        return _Attempt(fds[0], ring_bytes, server=True, message=UpgradeMessage({}, ()))


def _words(code: int) -> str:
    return explain(OSError(code, os.strerror(code)))


def _ring_problem(ring_bytes: object, options: Any) -> str | None:
    if not isinstance(ring_bytes, int) or isinstance(ring_bytes, bool):
        return "the offer does not say how large the rings are"
    if not 65536 <= ring_bytes <= RING_BYTES_MAX or ring_bytes & (ring_bytes - 1):
        return f"rings of {ring_bytes} bytes are not a power of two from 64 KiB to 256 MiB"
    most = getattr(options, "max_ring_bytes", RING_BYTES_MAX)
    if ring_bytes > most:
        return (
            f"rings of {size_text(ring_bytes)} are larger than this server takes (max_ring, "
            f"{size_text(most)}): ask for smaller ones (ring=...)"
        )
    return None


class _Attempt(UpgradeAttempt):
    def __init__(self, fd: int, ring_bytes: int, *, server: bool, message: UpgradeMessage) -> None:
        self._fd = fd
        self._ring_bytes = ring_bytes
        self._server = server
        self.message = message
        self._ring: Any = None
        try:
            # The limits of a frame are set in `complete`; here only the mapping counts.
            self._ring = self._map()
        except OSError as error:
            discard([fd])
            raise TransportUnavailable("shm", explain(error)) from None

    def _map(self) -> Any:
        limit = self._ring_bytes // 4
        return native.Ring(
            fd=self._fd,
            ring_bytes=self._ring_bytes,
            server=self._server,
            bell=-1,
            send_limit=limit,
            receive_limit=limit,
            seal=self._server,
        )

    def complete(self, link: Link, *, send_limit: int, receive_limit: int) -> Channel:
        if not self._server:
            self._lock()
        sock = socket.socket(fileno=link.detach())
        limit = self._ring_bytes // 4
        self._ring.attach_bell(sock.fileno(), min(send_limit, limit), min(receive_limit, limit))
        os.close(self._fd)
        return RingChannel(self._ring, sock, limit)

    def _lock(self) -> None:
        """(Client) do what an honest server has done: nobody may punch holes into our memory."""
        why = native.ffi.new("char const **")
        if native.lib.l5_segment_lock(self._fd, self._ring_bytes, why):
            self.abandon()
            reason = native.ffi.string(why[0]).decode()
            raise RemoteProtocolError(f"the server spoilt the memory of the rings: {reason}")

    def abandon(self) -> None:
        self._ring.close()
        os.close(self._fd)
