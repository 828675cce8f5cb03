"""The memory link of shared memory: frames over a Unix socket, and descriptors of regions.

    owner    sendmsg( frame, [region's file, control file] )     one batch of descriptors a grant
    client   recvmsg -> bytes to the frames, batches to a queue; the n-th batch belongs to grant n

Descriptors travel with the first byte of a frame that is sent after the grant, so whoever has read
the answer to its request has them.  Nothing else is shared: the socket carries the rest.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .._descriptors import discard, let_in
from .._errors import RemoteAccessError, RemoteProtocolError, TransportUnavailable
from ..abc import (
    Channel,
    GrantedRegion,
    Link,
    MemoryChannel,
    OpenedRegion,
    Probe,
    RemoteRegion,
    UpgradeAttempt,
    UpgradeMessage,
    UpgradeTransport,
)
from ..shm._regions import CONTROL_BYTES, MappedRegion, map_alien
from ._passing import receive_batch
from ._stream import StreamChannel

if TYPE_CHECKING:
    from .._options import Options

__all__ = ["MemorySocketChannel", "SharedRegions"]

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

UNCLAIMED_MAX: Final = 64
"""Batches that wait for who asked: those of openings that were cancelled, until the next one."""
FDS_OF_GRANT: Final = 2
_CHUNK: Final = 64 << 10


class MemorySocketChannel(StreamChannel, MemoryChannel):
    """See the module's docstring; `owner` tells which end this is."""

    def __init__(
        self, sock: socket.socket, *, owner: bool, send_limit: int, receive_limit: int
    ) -> None:
        super().__init__(sock, "shm", send_limit=send_limit, receive_limit=receive_limit)
        self._owner = owner
        self._outgoing: deque[list[int]] = deque()
        """(Owner) batches that have not left yet: copies of descriptors."""
        self._granted = 0
        self._incoming: deque[list[int]] = deque()
        self._claimed = 0
        """Batches that were taken, or thrown away."""
        del self._send, self._recv_into  # the methods below take their place
        let_in(sock, not owner)

    # -- the owner's end

    def grant(self, granted: GrantedRegion) -> Mapping[str, int | str | bytes | bool]:
        fd = granted.region.fileno()
        if fd < 0 or granted.control_fd < 0:
            raise TransportUnavailable("shm", "the region is no shared memory")
        batch: list[int] = []
        try:
            batch = [os.dup(fd), os.dup(granted.control_fd)]
        except OSError as error:
            discard(batch)
            raise TransportUnavailable("shm", f"no descriptor: {error.strerror}") from None
        self._outgoing.append(batch)
        self._granted += 1
        return {
            "batch": self._granted,
            "control_offset": granted.control_offset,
            "control_value": granted.control_value,
        }

    def withdraw(self, handle: int) -> None:
        """Do nothing: the control word says it to everybody."""

    def _send(self, data: Any, flags: int) -> int:  # type: ignore[override]
        if not self._outgoing:
            return self._socket.send(data, flags)
        batch = self._outgoing[0]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", batch))]
        sent = self._socket.sendmsg((data,), ancillary, flags)
        self._outgoing.popleft()
        discard(batch)
        return sent

    def _send_vector(self, header: bytes, payload: memoryview, size: int) -> bool:
        data = b"".join((header, payload))
        try:
            sent = self._send(data, getattr(socket, "MSG_NOSIGNAL", 0))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        if sent != len(data):
            self._rest = memoryview(data)[sent:]
        return True

    # -- the client's end

    def _recv_into(self, room: memoryview) -> int:  # type: ignore[override]
        data, fds = receive_batch(self._socket, min(len(room), _CHUNK))
        if fds is not None:
            self._incoming.append(fds)
            if self._owner or len(self._incoming) > UNCLAIMED_MAX:
                self._drop_incoming()
                raise RemoteProtocolError("the peer sent descriptors that nobody asked for")
        room[: len(data)] = data
        return len(data)

    def reach(self, opened: OpenedRegion) -> RemoteRegion:
        params = opened.params
        batch = self._claim(params.get("batch"))
        mapped: list[Any] = []
        try:
            if len(batch) != FDS_OF_GRANT:
                raise TransportUnavailable("shm", "the region's descriptors did not arrive")
            mapped.append(map_alien(batch[1], CONTROL_BYTES, writable=False))
            mapped.append(map_alien(batch[0], opened.size_bytes, writable=opened.writable))
            control, memory = mapped
            memory.guarded_by(control, params.get("control_offset"), params.get("control_value"))
            return MappedRegion(opened, memory)
        except BaseException as error:
            for memory in reversed(mapped):
                memory.close("")
            if isinstance(error, TypeError | ValueError | OverflowError | RemoteAccessError):
                raise RemoteProtocolError(f"the owner's grant makes no sense: {error}") from None
            raise
        finally:
            discard(batch)

    def _claim(self, number: object) -> list[int]:
        """Take the batch of this number; what came before it was for openings given up."""
        if not isinstance(number, int) or number <= self._claimed:
            raise RemoteProtocolError(f"the owner speaks of a batch of descriptors {number!r}")
        while self._incoming and self._claimed + 1 < number:
            discard(self._incoming.popleft())
            self._claimed += 1
        self._claimed = number
        return self._incoming.popleft() if self._incoming else []

    def _drop_incoming(self) -> None:
        while self._incoming:
            discard(self._incoming.popleft())

    # -- ends

    def forget(self) -> None:
        self._drop_incoming()
        while self._outgoing:
            discard(self._outgoing.popleft())
        super().forget()


class SharedRegions(UpgradeTransport):
    """The upgrade of memory links by which regions are mapped: to a socket that passes them."""

    name = "shm"

    def __init__(self, probe: Callable[[], Probe]) -> None:
        self._probe = probe

    def probe(self) -> Probe:
        """As of the transport itself."""
        return self._probe()

    def offer(self, link: Link, options: Options) -> Mapping[str, int | str | bytes | bool]:
        """See `UpgradeTransport.offer`."""
        probe = self.probe()
        if not probe.usable:
            raise TransportUnavailable(self.name, probe.reason)
        return {"page_bytes": _PAGE_BYTES}

    def judge(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Options
    ) -> str | None:
        """See `UpgradeTransport.judge`."""
        if params.get("page_bytes") != _PAGE_BYTES:
            return f"pages of {params.get('page_bytes')} bytes there, of {_PAGE_BYTES} here"
        return None

    def initiate(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Options
    ) -> UpgradeAttempt:
        """See `UpgradeTransport.initiate`."""
        if not link.passes_fds:
            raise TransportUnavailable(self.name, "this socket cannot pass descriptors")
        return _Attempt(owner=False)

    def join(
        self,
        link: Link,
        params: Mapping[str, int | str | bytes | bool],
        fds: Sequence[int],
        options: Options,
    ) -> UpgradeAttempt:
        """See `UpgradeTransport.join`."""
        discard(fds)
        return _Attempt(owner=True)


class _Attempt(UpgradeAttempt):
    def __init__(self, *, owner: bool) -> None:
        self._owner = owner
        self.message = UpgradeMessage({}, ())

    def complete(self, link: Link, *, send_limit: int, receive_limit: int) -> Channel:
        sock = socket.socket(fileno=link.detach())
        return MemorySocketChannel(
            sock, owner=self._owner, send_limit=send_limit, receive_limit=receive_limit
        )

    def abandon(self) -> None:
        """Nothing was made."""
