"""The one interface to RDMA: about twenty calls, which every backend has.

    Backend ── open ──> Device ──> CompletionQueue   (poll; arm, fileno, drain_events)
                          │
                          └──────> ProtectionDomain ──> MemoryRegion   (lkey, rkey)
                                          │
                                          └──────────> QueuePair ──> prepared requests

Setting up may cost milliseconds; it is done once. The hot path is *prepared* requests: each is made
once per purpose (row, flag, answer, read), a few of its fields are changed, and it is posted again.

Contract for all of it:

- Nothing here counts slots: whoever posts asks `SendSlots` first, once for all backends.
- Memory named by a request that is not INLINE stays as it is until its completion, or a later one
  of the same send queue, was polled; an INLINE request has copied it when `post` returns.
- A completion queue holds what its queue pairs can complete, or it overruns: its depth is at least
  the sum of their send and receive depths.
- Requests of one send queue complete in order. Two writes of one queue pair become visible in
  order on every reliable fabric known; no standard promises it (see docs/rdma.md).
- After a completion that failed, the queue pair is in error: everything later is FLUSHED,
  unsignalled requests too.
- Immediates and wr_ids are plain integers in the host's byte order.
- Nothing blocks. One thread at a time uses a queue.
- Close in order (QueuePair, CompletionQueue, MemoryRegion, ProtectionDomain, Device); what is still
  in use refuses with `ResourceBusy`.
"""

from __future__ import annotations

import ctypes
import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from . import _constants as c
from ._constants import *  # noqa: F403
from ._errors import (
    MEMLOCK_ADVICE,
    MemoryLockLimit,
    ResourceBusy,
    ResourceClosed,
    SendQueueFull,
    VerbsError,
    VerbsUnavailable,
    verbs_error,
)
from ._resource import Resource
from ._slots import SendSlots
from ._values import (
    LID_MAX,
    Completion,
    ConnectOptions,
    DeviceLimits,
    Gid,
    PortState,
    QueuePairAddress,
    QueuePairOptions,
    agree,
    choose_gid,
    gid_of,
    to_host,
    to_network,
)

__all__ = [
    "LID_MAX",
    "MEMLOCK_ADVICE",
    "AtomicRequest",
    "Backend",
    "Completion",
    "CompletionQueue",
    "ConnectOptions",
    "Device",
    "DeviceLimits",
    "Gid",
    "MemoryLockLimit",
    "MemoryRegion",
    "PortState",
    "ProtectionDomain",
    "QueuePair",
    "QueuePairAddress",
    "QueuePairOptions",
    "ReadBatch",
    "ReceiveRequest",
    "RequestPair",
    "Resource",
    "ResourceBusy",
    "ResourceClosed",
    "SendQueueFull",
    "SendRequest",
    "SendSlots",
    "VerbsError",
    "VerbsUnavailable",
    "address_of",
    "agree",
    "check_registration",
    "choose_gid",
    "gid_of",
    "to_host",
    "to_network",
    "verbs_error",
]


def address_of(buffer: Any) -> int:
    """Return the address of a writable buffer without copying it.

    The address is good as long as the buffer is; whoever registers it keeps the buffer. A ``mmap``
    or ``bytearray`` that must not be resized meanwhile needs an export that is kept (a
    memoryview).
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def check_registration(address: int, length: int, access: int) -> None:
    """Raise unless that could be registered; what is mapped there is the device's to find out."""
    most = c.LOCAL_WRITE | c.REMOTE_WRITE | c.REMOTE_READ | c.REMOTE_ATOMIC
    if length < 1 or address < 0 or address + length > 1 << 64 or access & ~most:
        raise verbs_error("register memory", errno.EINVAL)


class Backend(ABC):
    """A way to the verbs: our binding, pyverbs, or the simulated device."""

    name = "?"

    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """List the names of the RDMA devices of this machine."""

    @abstractmethod
    def open(self, name: str) -> Device:
        """Open a device.

        :raises VerbsUnavailable: there is none of that name (``missing`` is "device").
        """


class Device(Resource):
    """An open device."""

    what = "device"
    name: str

    @property
    @abstractmethod
    def limits(self) -> DeviceLimits:
        """Say what the device can do."""

    @abstractmethod
    def port(self, number: int = 1) -> PortState:
        """Ask for the state of a port, as it is now."""

    @abstractmethod
    def gids(self, port: int = 1) -> tuple[Gid, ...]:
        """List the GIDs of a port, as they are now; empty entries are left out."""

    @abstractmethod
    def protection_domain(self) -> ProtectionDomain:
        """Make a protection domain: keys of one say nothing in another."""

    @abstractmethod
    def completion_queue(self, depth: int, *, events: bool = False) -> CompletionQueue:
        """Make a completion queue of at least `depth`; with `events`, one that can be awaited."""


class ProtectionDomain(Resource):
    """What keeps one client's keys from opening another's memory."""

    what = "protection domain"
    device: Device

    @abstractmethod
    def register(
        self, address: int, length: int, access: int, *, owner: object = None
    ) -> MemoryRegion:
        """Register `length` bytes at `address`; `owner` is kept alive with the region.

        :raises MemoryLockLimit: this process may not lock that much; the error says what to do.
        """

    @abstractmethod
    def queue_pair(
        self,
        send_queue: CompletionQueue,
        receive_queue: CompletionQueue,
        options: QueuePairOptions,
    ) -> QueuePair:
        """Make a reliable-connection queue pair, not connected: in the state RESET or INIT."""


class MemoryRegion(Resource):
    """Registered memory."""

    what = "memory region"
    address: int
    length: int
    access: int
    lkey: int
    rkey: int
    owner: object


class CompletionQueue(Resource):
    """Where completions arrive.

    To sleep: poll; if there was nothing, `arm` and *poll again* (and look at the memory again); if
    there still is nothing, wait until `fileno` is readable; then `drain_events`, and poll.
    """

    what = "completion queue"
    depth: int

    @abstractmethod
    def poll(self, count_max: int = 16) -> Sequence[Completion]:
        """Take up to `count_max` completions; none is an empty sequence."""

    @abstractmethod
    def arm(self) -> None:
        """Ask for one event with the next completion."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the non-blocking descriptor that is readable when an event came.

        Nobody else may read it: an event that is not acknowledged blocks the closing for ever.

        :raises VerbsError: the queue was made without events.
        """

    @abstractmethod
    def drain_events(self) -> int:
        """Take all events that came, acknowledge them in time, and return how many they were."""


class QueuePair(Resource):
    """A reliable connection's end."""

    what = "queue pair"
    number: int
    send_depth: int  # as asked for: what `SendSlots` counts
    receive_depth: int
    inline_bytes: int  # what one request may carry inline: as asked for, or more

    @property
    @abstractmethod
    def state(self) -> int:
        """Ask for its state, as it is now (QP_*)."""

    @abstractmethod
    def connect(
        self, remote: QueuePairAddress, options: ConnectOptions, *, gid: Gid, port: int = 1
    ) -> None:
        """Connect: INIT, ready to receive, ready to send. `gid` is the local one.

        Connecting says nothing about reachability: a round trip has to show it. Receives may be
        posted before.
        """

    @abstractmethod
    def own_address(self, gid: Gid, *, port: int = 1) -> QueuePairAddress:
        """Return what the other end needs to connect; the first packet's number is random."""

    @abstractmethod
    def to_error(self) -> None:
        """Put it into error: what is outstanding completes as FLUSHED."""

    @abstractmethod
    def prepare(
        self,
        opcode: int,
        region: MemoryRegion,
        *,
        address: int = 0,
        remote_address: int = 0,
        rkey: int = 0,
        wr_id: int = 0,
    ) -> SendRequest:
        """Prepare a write, a write with immediate, a send or a read (OP_*) over `region`."""

    @abstractmethod
    def prepare_atomic(
        self, opcode: int, region: MemoryRegion, *, address: int, rkey: int, wr_id: int = 0
    ) -> AtomicRequest:
        """Prepare a compare-and-swap or fetch-and-add; the old value arrives at `address`."""

    @abstractmethod
    def prepare_pair(
        self, row: SendRequest, flag: SendRequest, *, chained: bool = False
    ) -> RequestPair:
        """Prepare the posting of a row and its flag by one call.

        `chained` hands both to the device by one post; else there are two, which the paper's
        hardware did faster.
        """

    @abstractmethod
    def prepare_reads(self, region: MemoryRegion, *, rkey: int, count_max: int) -> ReadBatch:
        """Prepare up to `count_max` READs at once into `region`."""

    @abstractmethod
    def prepare_receive(
        self,
        region: MemoryRegion | None = None,
        *,
        address: int = 0,
        length: int = 0,
        wr_id: int = 0,
    ) -> ReceiveRequest:
        """Prepare a receive; without a region it has room for an immediate alone."""


class SendRequest(ABC):
    """A prepared write, send or read. It keeps its region; it has nothing to close."""

    @abstractmethod
    def post(self, length: int, flags: int = 0, immediate: int = 0) -> None:
        """Post it as placed, for `length` bytes. `flags`: SIGNALED, INLINE, FENCE, SOLICITED.

        :raises VerbsError: the device refused it (too much inline data, no slot, not connected).
        """

    @abstractmethod
    def post_at(
        self, address: int, remote_address: int, length: int, flags: int = 0, immediate: int = 0
    ) -> None:
        """Place it, and post it."""

    @abstractmethod
    def place(self, address: int, remote_address: int, rkey: int | None = None) -> None:
        """Change where it takes from and where it goes (for a read: where to, where from)."""

    @abstractmethod
    def set_id(self, wr_id: int) -> None:
        """Change what its completion will be called."""


class RequestPair(ABC):
    """A row and its flag: two requests, one call. Both stay usable and placeable on their own."""

    @abstractmethod
    def post(
        self, length: int, row_flags: int = 0, flag_flags: int = 0, immediate: int = 0
    ) -> None:
        """Post the row with `length` bytes, then the flag, always of one byte."""


class ReadBatch(ABC):
    """Several READs with one completion."""

    count_max: int

    @abstractmethod
    def post(
        self, reads: Sequence[tuple[int, int, int]], flags: int = c.SIGNALED, wr_id: int = 0
    ) -> None:
        """Post READs of (local address, remote address, length), in order.

        Only the last has `flags` and `wr_id`. They complete in order: when the last did, all are
        there.

        :raises ValueError: none, or more than `count_max`; nothing was posted.
        """


class AtomicRequest(ABC):
    """A prepared compare-and-swap or fetch-and-add of 8 bytes.

    It is atomic with other RDMA atomics of the *same device*, and with nothing else: not with the
    owner's processor.
    """

    @abstractmethod
    def post(
        self,
        remote_address: int,
        operand: int,
        swap: int = 0,
        flags: int = c.SIGNALED,
        wr_id: int = 0,
    ) -> None:
        """Post it: `operand` is what to compare with, or what to add.

        :raises ValueError: the address is not a multiple of 8; nothing was posted.
        """


class ReceiveRequest(ABC):
    """A prepared receive."""

    @abstractmethod
    def post(self, count: int = 1) -> None:
        """Post it `count` times, by one call if the device can."""

    @abstractmethod
    def place(self, address: int, length: int, wr_id: int = 0) -> None:
        """Change where the message goes and what its completion is called."""
