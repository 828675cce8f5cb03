"""What requests are made from, in our own binding: regions, completion queues, queue pairs.

Each has a twin in C with what the hot calls need of it. A twin is retired as its owner is closed;
after that it refuses, so that no call reaches what the library has freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .. import native
from .._fast import (
    VerbsAtomic,
    VerbsCompletions,
    VerbsPair,
    VerbsQueue,
    VerbsReads,
    VerbsReceive,
    VerbsRegion,
    VerbsRequest,
)
from . import verbs
from ._library import LibraryCompletionQueue, LibraryQueuePair
from ._values import (
    Completion,
    ConnectOptions,
    Gid,
    QueuePairAddress,
    QueuePairOptions,
)

_ffi: Any = native.ffi
_lib: Any = native.lib


def check(call: str, code: int, **more: int) -> int:
    """Raise what a call that returned -errno says."""
    if code < 0:
        raise verbs.verbs_error(call, -code, **more)
    return code


class NativeRegion(verbs.MemoryRegion):
    """Registered memory."""

    def __init__(
        self,
        domain: verbs.ProtectionDomain,
        found: Any,
        address: int,
        length: int,
        access: int,
        owner: object,
    ) -> None:
        super().__init__(domain)
        self.address, self.length, self.access = address, length, access
        self.lkey, self.rkey = found.lkey, found.rkey
        self.owner = owner
        self.handle: int = found.handle
        self.hot = VerbsRegion(address, length, self.lkey)

    def _release(self) -> None:
        check("close the memory region", _lib.l5_verbs_region_destroy(self.handle))
        self.hot.retire()
        self.owner = None


class NativeCompletionQueue(LibraryCompletionQueue):
    """A completion queue."""

    def __init__(self, device: verbs.Device, found: Any) -> None:
        super().__init__(device, found.depth, found.fd if found.channel else None)
        self.found = found
        hot = self._hot = VerbsCompletions(found.handle, found.channel)
        # The instance's own, so that a poll is one call. They check for themselves.
        self.poll = hot.poll
        if found.channel:
            self.arm = hot.arm
            self.drain_events = hot.drain_events

    def poll(self, count_max: int = 16) -> Sequence[Completion]:
        """Take completions."""
        return self._hot.poll(count_max)

    def arm(self) -> None:
        """Ask for an event."""
        self._need_events("arm the queue")
        self._hot.arm()

    def drain_events(self) -> int:
        """Take all events."""
        self._need_events("take events")
        return self._hot.drain_events()

    def _release(self) -> None:
        self._hot.retire()
        check("close the completion queue", _lib.l5_verbs_completions_destroy(self.found))


class NativeQueuePair(LibraryQueuePair):
    """A queue pair."""

    def __init__(
        self,
        domain: verbs.ProtectionDomain,
        send_queue: NativeCompletionQueue,
        receive_queue: NativeCompletionQueue,
        options: QueuePairOptions,
        found: Any,
    ) -> None:
        super().__init__(
            domain, send_queue, receive_queue, options, found.number, found.inline_bytes
        )
        self.handle: int = found.handle
        self._hot = VerbsQueue(self.handle, self.send_depth, self.inline_bytes)
        # Receives may be posted from now on, before the peer is known.
        code = _lib.l5_verbs_queue_open(self.handle, 1, self._access)
        if code < 0:
            self.close()
            raise verbs.verbs_error("open a queue pair", -code)

    @property
    def state(self) -> int:
        """Ask for its state."""
        self.check_open()
        return check("query the queue pair", _lib.l5_verbs_queue_state(self.handle))

    def connect(
        self, remote: QueuePairAddress, options: ConnectOptions, *, gid: Gid, port: int = 1
    ) -> None:
        """Connect."""
        self.check_open()
        path = _ffi.new("struct l5_verbs_path *")
        path.gid = remote.gid
        path.number, path.psn, path.own_psn = remote.number, remote.psn, self.psn
        path.own_gid_index = gid.index
        path.routed = self._routed(remote, port)
        path.lid, path.port, path.mtu = remote.lid, port, options.mtu
        path.access = self._access
        path.rd_atomic, path.dest_rd_atomic = options.rd_atomic, options.dest_rd_atomic
        path.timeout, path.retries = options.timeout, options.retries
        path.rnr_retries, path.rnr_timer = options.rnr_retries, options.rnr_timer
        path.hop_limit = options.hop_limit
        check("connect a queue pair", _lib.l5_verbs_queue_connect(self.handle, path))

    def to_error(self) -> None:
        """Put it into error."""
        self.check_open()
        check("put the queue pair into error", _lib.l5_verbs_queue_fail(self.handle))

    def prepare(
        self,
        opcode: int,
        region: verbs.MemoryRegion,
        *,
        address: int = 0,
        remote_address: int = 0,
        rkey: int = 0,
        wr_id: int = 0,
    ) -> verbs.SendRequest:
        """Prepare a write, send or read."""
        hot = self._own(region, NativeRegion).hot
        request = VerbsRequest(self._hot, hot, region, opcode, address, remote_address, rkey, wr_id)
        return cast(verbs.SendRequest, request)

    def prepare_atomic(
        self, opcode: int, region: verbs.MemoryRegion, *, address: int, rkey: int, wr_id: int = 0
    ) -> verbs.AtomicRequest:
        """Prepare an atomic; each post names its completion."""
        hot = self._own(region, NativeRegion).hot
        request = VerbsAtomic(self._hot, hot, region, opcode, address, rkey)
        return cast(verbs.AtomicRequest, request)

    def prepare_pair(
        self, row: verbs.SendRequest, flag: verbs.SendRequest, *, chained: bool = False
    ) -> verbs.RequestPair:
        """Prepare a row and its flag."""
        return cast(verbs.RequestPair, VerbsPair(cast(Any, row), cast(Any, flag), chained))

    def prepare_reads(
        self, region: verbs.MemoryRegion, *, rkey: int, count_max: int
    ) -> verbs.ReadBatch:
        """Prepare a batch of reads."""
        hot = self._own(region, NativeRegion).hot
        return cast(verbs.ReadBatch, VerbsReads(self._hot, hot, region, rkey, count_max))

    def prepare_receive(
        self,
        region: verbs.MemoryRegion | None = None,
        *,
        address: int = 0,
        length: int = 0,
        wr_id: int = 0,
    ) -> verbs.ReceiveRequest:
        """Prepare a receive."""
        hot = None if region is None else self._own(region, NativeRegion).hot
        request = VerbsReceive(self._hot, hot, region, address, length, wr_id)
        return cast(verbs.ReceiveRequest, request)

    def _release(self) -> None:
        check("close the queue pair", _lib.l5_verbs_queue_destroy(self.handle))
        self._hot.retire()


verbs.SendRequest.register(VerbsRequest)
verbs.RequestPair.register(VerbsPair)
verbs.ReadBatch.register(VerbsReads)
verbs.AtomicRequest.register(VerbsAtomic)
verbs.ReceiveRequest.register(VerbsReceive)
