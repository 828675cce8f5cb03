"""Memory, completion queues and queue pairs of the simulated device."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from . import _constants as c
from . import verbs
from ._simulated_fabric import Fabric
from ._simulated_parts import Endpoint, Memory, Port, Queue, Receive, Work
from ._simulated_requests import (
    SimulatedAtomic,
    SimulatedPair,
    SimulatedReads,
    SimulatedReceive,
    SimulatedRequest,
)
from ._values import Completion, ConnectOptions, Gid, QueuePairAddress, QueuePairOptions


class SimulatedRegion(verbs.MemoryRegion):
    """Registered memory."""

    def __init__(
        self,
        domain: verbs.ProtectionDomain,
        fabric: Fabric,
        port: Port,
        memory: Memory,
        owner: object,
    ) -> None:
        super().__init__(domain)
        self.memory = memory
        self.owner = owner
        self.address, self.length, self.access = memory.address, memory.length, memory.access
        self.lkey = self.rkey = memory.key
        self._fabric, self._port = fabric, port

    def _release(self) -> None:
        with self._fabric.lock:
            self._fabric.forget(self.memory, self._port)
        self.owner = None


class SimulatedQueue(verbs.CompletionQueue):
    """A completion queue; its events are an eventfd's."""

    def __init__(self, device: verbs.Device, fabric: Fabric, depth: int, events: bool) -> None:
        super().__init__(device)
        self.depth = depth
        self._fabric = fabric
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if events else -1
        self.queue = Queue(depth, fd)

    def poll(self, count_max: int = 16) -> Sequence[Completion]:
        """Take completions; this is what frees slots."""
        self.check_open()
        with self._fabric.lock:
            self._fabric.kick()
            return self.queue.poll(count_max)

    def arm(self) -> None:
        """Ask for an event with the next completion; those that are there give none."""
        self.fileno()
        with self._fabric.lock:
            self.queue.armed = True

    def fileno(self) -> int:
        """Return the eventfd."""
        self.check_open()
        if self.queue.event_fd < 0:
            raise verbs.VerbsError("wait for events", 0, "the queue was made without events")
        return self.queue.event_fd

    def drain_events(self) -> int:
        """Take the events that came."""
        try:
            return os.eventfd_read(self.fileno())
        except BlockingIOError:
            return 0

    def _release(self) -> None:
        with self._fabric.lock:
            fd, self.queue.event_fd = self.queue.event_fd, -1
        if fd >= 0:
            os.close(fd)


class SimulatedQueuePair(verbs.QueuePair):
    """A queue pair."""

    def __init__(
        self,
        domain: verbs.ProtectionDomain,
        fabric: Fabric,
        port: Port,
        send_queue: SimulatedQueue,
        receive_queue: SimulatedQueue,
        options: QueuePairOptions,
    ) -> None:
        super().__init__(domain, send_queue, receive_queue)
        self.fabric = fabric
        self.send_depth, self.receive_depth = options.send_depth, options.receive_depth
        self.inline_bytes = options.inline_bytes
        with self.fabric.lock:
            self.number = self.fabric.new_number()
            self.end = self.fabric.endpoints[self.number] = Endpoint(
                self.number,
                self.fabric.new_number(),
                port,
                domain,
                send_queue.queue,
                receive_queue.queue,
                options,
            )

    @property
    def state(self) -> int:
        """Say its state."""
        self.check_open()
        return self.end.state

    def own_address(self, gid: Gid, *, port: int = 1) -> QueuePairAddress:
        """Say how it is reached."""
        shared = self.end.port
        limits = shared.limits
        return QueuePairAddress(
            self.number,
            self.end.psn,
            gid.raw,
            0,
            shared.active_mtu,
            limits.rd_atomic,
            limits.init_rd_atomic,
        )

    def connect(
        self, remote: QueuePairAddress, options: ConnectOptions, *, gid: Gid, port: int = 1
    ) -> None:
        """Connect, with all that hardware checks checked."""
        self.check_open()
        end, call = self.end, "connect a queue pair"
        with self.fabric.lock:
            limits, table = end.port.limits, end.port.gids
            if gid.index >= len(table) or table[gid.index].raw != gid.raw:
                raise verbs.verbs_error(call, errno.ENODATA)
            if (
                end.state != c.QP_RESET
                or options.mtu > end.port.active_mtu
                or options.rd_atomic > limits.init_rd_atomic
                or options.dest_rd_atomic > limits.rd_atomic
                or _is_ipv4(remote.gid) != _is_ipv4(gid.raw)
            ):
                raise verbs.verbs_error(call, errno.EINVAL)
            end.gid, end.remote, end.agreed = gid.raw, remote, options
            end.state = c.QP_READY_TO_SEND
            self.fabric.kick()

    def to_error(self) -> None:
        """Flush everything."""
        self.check_open()
        with self.fabric.lock:
            self.end.fail()
            self.fabric.kick()

    def prepare(
        self,
        opcode: int,
        region: verbs.MemoryRegion,
        *,
        address: int = 0,
        remote_address: int = 0,
        rkey: int = 0,
        wr_id: int = 0,
    ) -> SimulatedRequest:
        """Prepare a request."""
        assert isinstance(region, SimulatedRegion)
        memory = region.memory
        return SimulatedRequest(self, opcode, memory, address, remote_address, rkey, wr_id)

    def prepare_atomic(
        self, opcode: int, region: verbs.MemoryRegion, *, address: int, rkey: int, wr_id: int = 0
    ) -> SimulatedAtomic:
        """Prepare an atomic."""
        return SimulatedAtomic(
            self.prepare(opcode, region, address=address, rkey=rkey, wr_id=wr_id)
        )

    def prepare_pair(
        self, row: verbs.SendRequest, flag: verbs.SendRequest, *, chained: bool = False
    ) -> SimulatedPair:
        """Prepare a row and its flag."""
        assert isinstance(row, SimulatedRequest) and isinstance(flag, SimulatedRequest)
        return SimulatedPair(self, row, flag, chained)

    def prepare_reads(
        self, region: verbs.MemoryRegion, *, rkey: int, count_max: int
    ) -> SimulatedReads:
        """Prepare a batch of reads."""
        return SimulatedReads(self.prepare(c.OP_READ, region, rkey=rkey), count_max)

    def prepare_receive(
        self,
        region: verbs.MemoryRegion | None = None,
        *,
        address: int = 0,
        length: int = 0,
        wr_id: int = 0,
    ) -> SimulatedReceive:
        """Prepare a receive."""
        assert region is None or isinstance(region, SimulatedRegion)
        memory = None if region is None else region.memory
        return SimulatedReceive(self, memory, address, length, wr_id)

    def post(self, works: Sequence[Work]) -> None:
        """Take requests: all or none, if there are slots for them."""
        self.check_open()
        end = self.end
        with self.fabric.lock:
            if end.state not in (c.QP_READY_TO_SEND, c.QP_ERROR):
                raise verbs.verbs_error("post", errno.EINVAL)
            if end.posted + len(works) - end.freed > self.send_depth:
                raise verbs.verbs_error("post", errno.ENOMEM, depth=self.send_depth)
            self.fabric.posts += 1
            for work in works:
                end.posted += 1
                work.ordinal = end.posted
                end.queue.append(work)
                end.waiting.append(work)
            if end.state == c.QP_ERROR:
                end.fail()
            self.fabric.kick(end)

    def post_receives(self, receives: Sequence[Receive]) -> None:
        """Take receives: all or none."""
        self.check_open()
        end = self.end
        with self.fabric.lock:
            if end.receives_taken + len(receives) > self.receive_depth:
                raise verbs.verbs_error("post a receive", errno.ENOMEM)
            end.receives_taken += len(receives)
            end.receives.extend(receives)
            if end.state == c.QP_ERROR:
                end.fail()
            self.fabric.kick()

    def _release(self) -> None:
        with self.fabric.lock:
            self.fabric.land_all()
            self.end.queue.clear()
            self.end.waiting.clear()
            self.end.state = c.QP_RESET
            del self.fabric.endpoints[self.number]
            self.fabric.kick()


def _is_ipv4(gid: bytes) -> bool:
    return gid[:12] == b"\x00" * 10 + b"\xff\xff"
