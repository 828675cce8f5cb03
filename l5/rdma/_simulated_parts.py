"""The parts of a simulated fabric: ports, registered memory, completion queues, queue pairs' ends.

They hold state and answer questions about it; what happens between them is the fabric's.
"""

from __future__ import annotations

import os
from collections import deque

import attrs

from . import _constants as c
from ._errors import VerbsError
from ._values import (
    Completion,
    ConnectOptions,
    DeviceLimits,
    Gid,
    QueuePairAddress,
    QueuePairOptions,
)

LIMITS = DeviceLimits(
    queue_depth=1024,
    completion_depth=32767,
    sges=1,
    rd_atomic=16,
    init_rd_atomic=16,
    region_bytes=1 << 40,
    atomics=c.ATOMIC_DEVICE,
)
INLINE_MAX = 512
READS_AND_ATOMICS = (c.OP_READ, c.OP_COMPARE_AND_SWAP, c.OP_FETCH_AND_ADD)
NEEDS_RECEIVE = (c.OP_SEND, c.OP_SEND_WITH_IMM, c.OP_WRITE_WITH_IMM)


@attrs.define(eq=False)
class Port:
    """A simulated device with its one port, as all who open it share it."""

    name: str
    gids: tuple[Gid, ...]
    active_mtu: int = 5
    link_layer: int = c.LINK_ETHERNET
    state: int = c.PORT_ACTIVE
    limits: DeviceLimits = LIMITS
    locked_bytes_max: int | None = None  # what may be registered in all; None is no limit
    locked_bytes: int = 0
    regions: dict[int, Memory] = attrs.field(factory=dict[int, "Memory"], init=False)
    atomic_by: Work | None = attrs.field(default=None, init=False)  # between its load and store


@attrs.define(eq=False)
class Memory:
    """Registered memory. Its key opens it in one protection domain."""

    domain: object
    key: int
    address: int
    length: int
    access: int
    open: bool = True

    def allows(self, domain: object, address: int, length: int, access: int) -> bool:
        """Tell whether that access is granted."""
        return (
            self.open
            and self.domain is domain
            and self.access & access == access
            and self.address <= address
            and address + length <= self.address + self.length
        )


@attrs.define(eq=False)
class Work:
    """One posted send, write, read or atomic."""

    opcode: int
    memory: Memory
    address: int
    length: int
    flags: int
    wr_id: int
    remote_address: int = 0
    rkey: int = 0
    immediate: int = 0
    operand: int = 0
    swap: int = 0
    inline: bytes | None = None
    ordinal: int = 0  # its number in its send queue, from 1
    sent: int = 0
    begun: bool = False
    refused: int = 0  # the status that it fails with, when its turn comes
    executed: bool = False  # at the other end
    done: bool = False
    # Of a read: (offset, length) still to be fetched.
    pieces: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    old: int | None = None  # of an atomic: what its load saw
    receive: Receive | None = None  # of a send: what it goes into


@attrs.define(eq=False)
class Receive:
    """One posted receive."""

    memory: Memory | None
    address: int
    length: int
    wr_id: int


@attrs.define(eq=False)
class Piece:
    """Bytes on their way into memory, or (without bytes) the notice that all before are there."""

    ordinal: int
    address: int
    data: bytes
    notice: tuple[Endpoint, Completion] | None = None


@attrs.define(eq=False)
class Queue:
    """A completion queue."""

    depth: int
    event_fd: int = -1
    entries: deque[tuple[Completion, Endpoint, int]] = attrs.field(
        factory=deque[tuple[Completion, "Endpoint", int]], init=False
    )
    armed: bool = attrs.field(default=False, init=False)
    overrun: bool = attrs.field(default=False, init=False)

    def push(self, completion: Completion, endpoint: Endpoint, ordinal: int) -> None:
        """Add a completion; `ordinal` is the last slot it frees, -1 for one of the receives."""
        if len(self.entries) >= self.depth:
            self.overrun = True
            return
        self.entries.append((completion, endpoint, ordinal))
        if self.armed:
            self.armed = False
            if self.event_fd >= 0:
                os.eventfd_write(self.event_fd, 1)

    def poll(self, count_max: int) -> list[Completion]:
        """Take completions, and free the slots up to them."""
        if self.overrun:
            raise VerbsError(
                "poll",
                0,
                f"the completion queue of depth {self.depth} overran",
                "make it as deep as all queues of its queue pairs together",
            )
        found: list[Completion] = []
        while self.entries and len(found) < count_max:
            completion, endpoint, ordinal = self.entries.popleft()
            if ordinal < 0:
                endpoint.receives_taken -= 1
            else:
                endpoint.freed = ordinal
            found.append(completion)
        return found


@attrs.define(eq=False)
class Endpoint:
    """One end of a connection: a queue pair's state."""

    number: int
    psn: int
    port: Port
    domain: object
    send_to: Queue
    receive_to: Queue
    options: QueuePairOptions
    state: int = c.QP_RESET
    gid: bytes = b""
    remote: QueuePairAddress | None = None
    agreed: ConnectOptions | None = None
    queue: deque[Work] = attrs.field(factory=deque[Work], init=False)  # not completed
    waiting: deque[Work] = attrs.field(factory=deque[Work], init=False)  # of these: not all sent
    reads: deque[Work] = attrs.field(factory=deque[Work], init=False)  # sent, not executed
    landing: list[Piece] = attrs.field(factory=list[Piece], init=False)  # at the other end
    receives: deque[Receive] = attrs.field(factory=deque[Receive], init=False)
    posted: int = 0
    freed: int = 0  # by polled completions alone
    receives_taken: int = 0
    deadline: float | None = None

    @property
    def busy(self) -> bool:
        """Tell whether anything of it is still to happen."""
        return bool(self.queue or self.landing)

    def finish(self, work: Work, status: int) -> None:
        """Complete the oldest request."""
        assert self.queue[0] is work
        self.queue.popleft()
        work.done = True
        if status == c.SUCCESS and not work.flags & c.SIGNALED:
            return
        opcode = {
            c.OP_WRITE: c.WC_WRITE,
            c.OP_WRITE_WITH_IMM: c.WC_WRITE,
            c.OP_READ: c.WC_READ,
            c.OP_COMPARE_AND_SWAP: c.WC_COMPARE_AND_SWAP,
            c.OP_FETCH_AND_ADD: c.WC_FETCH_AND_ADD,
        }.get(work.opcode, c.WC_SEND)
        count = work.length if work.opcode in READS_AND_ATOMICS else 0
        completion = Completion(work.wr_id, status, opcode, count, None, self.number)
        self.send_to.push(completion, self, work.ordinal)

    def fail(self, failed: Work | None = None, status: int = c.FLUSHED) -> None:
        """Go into error: `failed` completes with `status`, all else that is open is flushed."""
        self.state = c.QP_ERROR
        self.deadline = None
        while self.queue:
            work = self.queue[0]
            if work.executed and failed is not None and work.ordinal < failed.ordinal:
                self.finish(work, c.SUCCESS)
            else:
                self.finish(work, status if work is failed else c.FLUSHED)
        self.waiting.clear()
        self.reads.clear()
        while self.receives:
            receive = self.receives.popleft()
            self.receive_to.push(
                Completion(receive.wr_id, c.FLUSHED, c.WC_RECEIVE, 0, None, self.number), self, -1
            )
