"""Domains, regions, completion queues and queue pairs over pyverbs. See _pyverbs.py."""

from __future__ import annotations

import ipaddress
import weakref
from collections.abc import Sequence
from typing import Any, Final

from . import _constants as c
from . import verbs
from ._library import LibraryCompletionQueue, LibraryQueuePair, queue_pair_parts
from ._pyverbs_made import Api, Live, Maker, calling, code_of
from ._pyverbs_requests import (
    PyverbsAtomic,
    PyverbsPair,
    PyverbsReads,
    PyverbsReceive,
    PyverbsRequest,
    Region,
)
from ._values import (
    Completion,
    ConnectOptions,
    Gid,
    QueuePairAddress,
    QueuePairOptions,
    to_host,
)

TYPE_RC: Final = 2
STATE_BIT: Final = 1
ACKNOWLEDGE_EVERY: Final = 64  # each acknowledgement takes a mutex


class PyverbsDomain(verbs.ProtectionDomain):
    """A protection domain."""

    def __init__(self, device: verbs.Device, api: Api, domain: Any) -> None:
        super().__init__(device)
        self.api = api
        self.device = device
        self.domain = domain

    def register(
        self, address: int, length: int, access: int, *, owner: object = None
    ) -> PyverbsRegion:
        """Register memory."""
        self.check_open()
        verbs.check_registration(address, length, access)
        with calling(self.api, "register memory", size_bytes=length):
            region = self.api.MR(self.domain, length, access, address=address)
        return PyverbsRegion(self, region, address, length, access, owner)

    def queue_pair(
        self,
        send_queue: verbs.CompletionQueue,
        receive_queue: verbs.CompletionQueue,
        options: QueuePairOptions,
    ) -> PyverbsQueuePair:
        """Make a queue pair."""
        sending, receiving, counts = queue_pair_parts(
            self, (send_queue, receive_queue), PyverbsCompletionQueue, options
        )
        capacity = self.api.QPCap(
            max_send_wr=counts[0],
            max_recv_wr=counts[1],
            max_send_sge=1,
            max_recv_sge=1,
            max_inline_data=counts[2],
        )
        wanted = self.api.QPInitAttr(
            qp_type=TYPE_RC,
            scq=sending.queue,
            rcq=receiving.queue,
            cap=capacity,
            sq_sig_all=0,
        )
        with calling(self.api, "create a queue pair"):
            pair = self.api.QP(self.domain, wanted)
        return PyverbsQueuePair(self, sending, receiving, options, pair, wanted.max_inline_data)

    def _release(self) -> None:
        with calling(self.api, "close the protection domain"):
            self.domain.close()


class PyverbsRegion(Region):
    """Registered memory."""

    def __init__(
        self,
        domain: PyverbsDomain,
        region: Any,
        address: int,
        length: int,
        access: int,
        owner: object,
    ) -> None:
        super().__init__(domain)
        self.api = domain.api
        self.address, self.length, self.access = address, length, access
        self.lkey, self.rkey = region.lkey, region.rkey
        self.owner = owner
        self.region = region
        self.users = weakref.WeakSet()

    def _release(self) -> None:
        with calling(self.api, "close the memory region"):
            self.region.close()
        for request in self.users:
            request.region_closed()
        self.owner = None


class PyverbsCompletionQueue(LibraryCompletionQueue):
    """A completion queue."""

    def __init__(
        self, device: verbs.Device, api: Api, queue: Any, channel: Any, descriptor: int
    ) -> None:
        super().__init__(device, queue.cqe, None if channel is None else descriptor)
        self.api = api
        self.queue = queue
        self._channel = channel
        self._unacknowledged = 0
        self._live = Live("poll", queue.poll)

    def poll(self, count_max: int = 16) -> Sequence[Completion]:
        """Take completions."""
        try:
            count, found = self._live.call(count_max)
        except self.api.error as error:
            raise verbs.verbs_error("poll", code_of(error)) from error
        return [_completion(one) for one in found] if count else ()

    def arm(self) -> None:
        """Ask for an event."""
        self._need_events("arm the queue")
        with calling(self.api, "arm"):
            self.queue.req_notify()

    def drain_events(self) -> int:
        """Take all events."""
        self._need_events("take events")
        count = self._take_events()
        if self._unacknowledged >= ACKNOWLEDGE_EVERY:
            self._acknowledge()
        return count

    def _take_events(self) -> int:
        count = 0
        while self._channel is not None:
            try:
                self._channel.get_cq_event(self.queue)
            except self.api.error:
                break
            count += 1
        self._unacknowledged += count
        return count

    def _acknowledge(self) -> None:
        if self._unacknowledged:
            self.queue.ack_events(self._unacknowledged)
        self._unacknowledged = 0

    def _release(self) -> None:
        # Destroying it waits for ever for events that were taken and not acknowledged.
        self._take_events()
        self._acknowledge()
        self._live.end()
        with calling(self.api, "close the completion queue"):
            self.queue.close()
            if self._channel is not None:
                self._channel.close()


def _completion(found: Any) -> Completion:
    status, opcode = int(found.status), int(found.opcode)
    good = status == c.SUCCESS
    immediate = to_host(found.imm_data) if good and int(found.wc_flags) & c.WC_HAS_IMM else None
    length = found.byte_len if good and opcode >= c.WC_READ else 0
    return Completion(found.wr_id, status, opcode, length, immediate, found.qp_num)


class PyverbsQueuePair(LibraryQueuePair):
    """A queue pair."""

    def __init__(
        self,
        domain: PyverbsDomain,
        send_queue: PyverbsCompletionQueue,
        receive_queue: PyverbsCompletionQueue,
        options: QueuePairOptions,
        pair: Any,
        inline_bytes: int,
    ) -> None:
        super().__init__(domain, send_queue, receive_queue, options, pair.qp_num, inline_bytes)
        self.api = domain.api
        self.pair = pair
        self.maker = Maker(self.api, pair, self.send_depth, inline_bytes)
        try:
            with calling(self.api, "open a queue pair"):
                # Receives may be posted from now on, before the peer is known.
                pair.to_init(self._attributes(1))
        except BaseException:
            self.close()
            raise

    def _attributes(self, port: int) -> Any:
        attributes = self.api.QPAttr()
        attributes.port_num = port
        attributes.pkey_index = 0
        attributes.qp_access_flags = self._access
        return attributes

    @property
    def state(self) -> int:
        """Ask for its state."""
        self.check_open()
        with calling(self.api, "query the queue pair"):
            return int(self.pair.query(STATE_BIT)[0].qp_state)

    def connect(
        self, remote: QueuePairAddress, options: ConnectOptions, *, gid: Gid, port: int = 1
    ) -> None:
        """Connect."""
        self.check_open()
        route = self.api.GlobalRoute(
            dgid=self.api.GID(ipaddress.IPv6Address(remote.gid).exploded),
            sgid_index=gid.index,
            hop_limit=options.hop_limit,
        )
        routed = self._routed(remote, port)
        with calling(self.api, "connect a queue pair"):
            attributes = self._attributes(port)
            self.pair.to_init(attributes)
            attributes.ah_attr = self.api.AHAttr(
                gr=route, is_global=int(routed), dlid=remote.lid, port_num=port
            )
            attributes.path_mtu = options.mtu
            attributes.dest_qp_num, attributes.rq_psn = remote.number, remote.psn
            attributes.max_dest_rd_atomic = options.dest_rd_atomic
            attributes.min_rnr_timer = options.rnr_timer
            self.pair.to_rtr(attributes)
            attributes.sq_psn = self.psn
            attributes.timeout, attributes.retry_cnt = options.timeout, options.retries
            attributes.rnr_retry = options.rnr_retries
            attributes.max_rd_atomic = options.rd_atomic
            self.pair.to_rts(attributes)

    def to_error(self) -> None:
        """Put it into error."""
        self.check_open()
        attributes = self.api.QPAttr()
        attributes.qp_state = c.QP_ERROR
        with calling(self.api, "put the queue pair into error"):
            self.pair.modify(attributes, STATE_BIT)

    def prepare(
        self,
        opcode: int,
        region: verbs.MemoryRegion,
        *,
        address: int = 0,
        remote_address: int = 0,
        rkey: int = 0,
        wr_id: int = 0,
    ) -> PyverbsRequest:
        """Prepare a write, send or read."""
        own = self._own(region, PyverbsRegion)
        return PyverbsRequest(self.maker, opcode, own, address, remote_address, rkey, wr_id)

    def prepare_atomic(
        self, opcode: int, region: verbs.MemoryRegion, *, address: int, rkey: int, wr_id: int = 0
    ) -> PyverbsAtomic:
        """Prepare an atomic; each post names its completion."""
        self._own(region, PyverbsRegion)
        return PyverbsAtomic(self.maker, opcode, region, address, rkey)

    def prepare_pair(
        self, row: verbs.SendRequest, flag: verbs.SendRequest, *, chained: bool = False
    ) -> PyverbsPair:
        """Prepare a row and its flag."""
        if not (isinstance(row, PyverbsRequest) and isinstance(flag, PyverbsRequest)):
            raise TypeError("row and flag must be requests of this queue pair")
        return PyverbsPair(row, flag, chained)

    def prepare_reads(
        self, region: verbs.MemoryRegion, *, rkey: int, count_max: int
    ) -> PyverbsReads:
        """Prepare a batch of reads."""
        self._own(region, PyverbsRegion)
        return PyverbsReads(self.maker, region, rkey, count_max)

    def prepare_receive(
        self,
        region: verbs.MemoryRegion | None = None,
        *,
        address: int = 0,
        length: int = 0,
        wr_id: int = 0,
    ) -> PyverbsReceive:
        """Prepare a receive."""
        if region is not None:
            self._own(region, PyverbsRegion)
        return PyverbsReceive(self.maker, region, address, length, wr_id)

    def _release(self) -> None:
        with calling(self.api, "close the queue pair"):
            self.pair.close()
        self.maker.close()
