"""Prepared requests over pyverbs: made once, changed, posted again. See _pyverbs_made.py."""

from __future__ import annotations

import errno
import weakref
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from .. import native
from . import _constants as c
from . import verbs
from ._pyverbs_made import Made, Maker
from ._values import to_network

if TYPE_CHECKING:
    from .._fast import ForeignPair

LENGTH_MAX: Final = (1 << 31) - 1
WITH_IMMEDIATE: Final = (c.OP_WRITE_WITH_IMM, c.OP_SEND_WITH_IMM)
READS_MAX: Final = 65536


class Region(verbs.MemoryRegion):
    """Registered memory that tells its requests when it is closed."""

    users: weakref.WeakSet[PyverbsRequest]


class PyverbsRequest(verbs.SendRequest):
    """A prepared write, send or read."""

    def __init__(
        self,
        maker: Maker,
        opcode: int,
        region: Region,
        address: int,
        remote_address: int,
        rkey: int,
        wr_id: int,
    ) -> None:
        if opcode not in range(c.OP_WRITE, c.OP_READ + 1):
            raise ValueError(f"{opcode} is no write, send or read")
        self.maker, self.opcode, self.region = maker, opcode, region
        self.made = maker.send(opcode, region.lkey)
        maker.keep(self, (self.made,))
        self.has_immediate = opcode in WITH_IMMEDIATE
        self.room = 0  # bytes of the region from its address on; -1 if it is outside, or closed
        self.quick = 0  # ... of which so many need no further look, inline or not
        self.limit = array("q", [0])  # the same, where C sees it
        self._inline_bytes = 0 if opcode == c.OP_READ else maker.inline_bytes
        region.users.add(self)
        self.rkey = rkey
        self.place(address, remote_address)
        self.set_id(wr_id)

    def post(self, length: int, flags: int = 0, immediate: int = 0) -> None:
        """Post it as it is placed."""
        if not 0 < length <= self.quick:
            self.check(length, flags)
        wr = self.made.wr
        self.made.sge.length = length
        wr.send_flags = flags
        if self.has_immediate:
            wr.imm_data = to_network(immediate)
        try:
            if length:
                self.maker.live.call(wr)
            else:
                self._post_nothing(wr)
        except self.maker.error as error:
            raise self.maker.failed(error) from error

    def _post_nothing(self, wr: Any) -> None:
        wr.num_sge = 0  # a length of 0 is 2 GiB to some devices
        try:
            self.maker.live.call(wr)
        finally:
            wr.num_sge = 1

    def post_at(
        self, address: int, remote_address: int, length: int, flags: int = 0, immediate: int = 0
    ) -> None:
        """Place and post it."""
        self.place(address, remote_address)
        self.post(length, flags, immediate)

    def place(self, address: int, remote_address: int, rkey: int | None = None) -> None:
        """Place it."""
        region, made = self.region, self.made
        if rkey is not None:
            self.rkey = rkey
        made.sge.addr = self.address = address
        made.wr.set_wr_rdma(self.rkey, remote_address)
        self.remote_address = remote_address
        end = region.address + region.length
        inside = region.address <= address <= end and not region.closed
        self.room = min(end - address, LENGTH_MAX) if inside else -1
        self.quick = self.limit[0] = min(self.room, self._inline_bytes)

    def region_closed(self) -> None:
        """Look at every post from now on: it will be refused."""
        self.room = self.quick = self.limit[0] = -1

    def set_id(self, wr_id: int) -> None:
        """Name it."""
        self.made.wr.wr_id = self.wr_id = wr_id

    def check(self, length: int, flags: int) -> None:
        """Raise if it may not be posted so: inline data is read by the library itself."""
        self.region.check_open()
        if length and not 0 < length <= self.room:
            raise ValueError(f"{length} bytes at {self.address} do not lie within the region")
        if flags & c.INLINE and (length > self.maker.inline_bytes or self.opcode == c.OP_READ):
            raise verbs.verbs_error("post", errno.EINVAL)


class PyverbsPair(verbs.RequestPair):
    """A row and its flag."""

    def __init__(self, row: PyverbsRequest, flag: PyverbsRequest, chained: bool) -> None:
        if row is flag or row.maker is not flag.maker:
            raise ValueError("row and flag must be two requests of one queue pair")
        self._row, self._flag = row, flag
        self._chain: Made | None = None
        if chained:
            # A request that was once followed by another always is: so this is one of its own.
            self._chain = row.maker.send(row.opcode, row.region.lkey)
            self._chain.wr.next_wr = flag.made.wr
            row.maker.keep(self, (self._chain,))
        elif native.available:
            from .._fast import ForeignPair

            setattr(self, "post", self._in_c(ForeignPair).post)  # noqa: B010

    def _in_c(self, pair: type[ForeignPair]) -> ForeignPair:
        """Return what posts both by one call into C, and asks us if there is more to it."""
        row, flag, slowly = self._row, self._flag, weakref.WeakMethod(self._post_slowly)
        maker = row.maker

        def look(length: int, row_flags: int, flag_flags: int, immediate: int) -> None:
            call = slowly()
            assert call is not None
            call(length, row_flags, flag_flags, immediate)

        def translate(error: Exception) -> Exception:
            return maker.failed(error) if isinstance(error, maker.error) else error

        return pair(
            *(row, flag, row.limit, flag.limit),
            *(row.made.wr, row.made.sge, flag.made.wr, flag.made.sge),
            *(maker.live, look, translate, flag.has_immediate),
        )

    def post(
        self, length: int, row_flags: int = 0, flag_flags: int = 0, immediate: int = 0
    ) -> None:
        """Post both."""
        self._post_slowly(length, row_flags, flag_flags, immediate)

    def _post_slowly(self, length: int, row_flags: int, flag_flags: int, immediate: int) -> None:
        row, flag, chain = self._row, self._flag, self._chain
        row.check(length, row_flags)
        flag.check(1, flag_flags)
        if chain is None:
            row.post(length, row_flags)
            flag.post(1, flag_flags, immediate)
            return
        chain.sge.addr, chain.sge.length = row.address, length
        chain.wr.set_wr_rdma(row.rkey, row.remote_address)
        chain.wr.wr_id, chain.wr.send_flags = row.wr_id, row_flags
        chain.wr.num_sge = 1 if length else 0
        flag.made.sge.length, flag.made.wr.send_flags = 1, flag_flags
        if flag.has_immediate:
            flag.made.wr.imm_data = to_network(immediate)
        try:
            row.maker.live.call(chain.wr)
        except row.maker.error as error:
            raise row.maker.failed(error) from error


class PyverbsReads(verbs.ReadBatch):
    """A batch of READs: one chain, of which the end is posted that is as long as the batch."""

    def __init__(self, maker: Maker, region: verbs.MemoryRegion, rkey: int, count_max: int) -> None:
        if not 1 <= count_max <= READS_MAX:
            raise ValueError(f"a batch may have 1 to {READS_MAX} reads, not {count_max}")
        self._maker, self._region, self._rkey = maker, region, rkey
        self.count_max = count_max
        self._chain = [maker.send(c.OP_READ, region.lkey) for _ in range(count_max)]
        for made, following in pairwise(self._chain):
            made.wr.next_wr = following.wr
        maker.keep(self, self._chain)

    def post(
        self, reads: Sequence[tuple[int, int, int]], flags: int = c.SIGNALED, wr_id: int = 0
    ) -> None:
        """Post them."""
        count = len(reads)
        if not 1 <= count <= self.count_max:
            raise ValueError(f"a batch has 1 to {self.count_max} reads, not {count}")
        if flags & c.INLINE:
            raise ValueError("a read is never inline")
        region = self._region
        region.check_open()
        begin, end = region.address, region.address + region.length
        chain = self._chain[self.count_max - count :]
        for made, (address, remote_address, length) in zip(chain, reads, strict=True):
            if length and not (begin <= address and 0 < length <= end - address):
                raise ValueError(f"{length} bytes at {address} do not lie within the region")
            made.sge.addr, made.sge.length = address, length
            made.wr.num_sge = 1 if length else 0
            made.wr.set_wr_rdma(self._rkey, remote_address)
        last = chain[-1].wr  # always the same one
        last.send_flags, last.wr_id = flags, wr_id
        try:
            self._maker.live.call(chain[0].wr)
        except self._maker.error as error:
            raise self._maker.failed(error) from error


class PyverbsAtomic(verbs.AtomicRequest):
    """A prepared atomic."""

    def __init__(
        self, maker: Maker, opcode: int, region: verbs.MemoryRegion, address: int, rkey: int
    ) -> None:
        if opcode not in (c.OP_COMPARE_AND_SWAP, c.OP_FETCH_AND_ADD):
            raise ValueError(f"{opcode} is no atomic")
        self._address = address
        self._maker, self._region, self._rkey = maker, region, rkey
        self._made = maker.send(opcode, region.lkey)
        self._made.sge.addr, self._made.sge.length = address, 8
        maker.keep(self, (self._made,))

    def post(
        self,
        remote_address: int,
        operand: int,
        swap: int = 0,
        flags: int = c.SIGNALED,
        wr_id: int = 0,
    ) -> None:
        """Post it."""
        if remote_address % 8:
            raise ValueError(f"an atomic's address must be a multiple of 8, not {remote_address}")
        region = self._region
        region.check_open()
        if not region.address <= self._address <= region.address + region.length - 8:
            raise ValueError(f"8 bytes at {self._address} do not lie within the region")
        wr = self._made.wr
        wr.send_flags, wr.wr_id = flags, wr_id
        wr.set_wr_atomic(self._rkey, remote_address, operand, swap)
        try:
            self._maker.live.call(wr)
        except self._maker.error as error:
            raise self._maker.failed(error) from error


class PyverbsReceive(verbs.ReceiveRequest):
    """A prepared receive. Placing it makes it anew, for pyverbs lets nobody change one."""

    def __init__(
        self,
        maker: Maker,
        region: verbs.MemoryRegion | None,
        address: int,
        length: int,
        wr_id: int,
    ) -> None:
        self._maker, self._region = maker, region
        self._made = [self._make(address, length, wr_id)]
        maker.keep(self, self._made)

    def _make(self, address: int, length: int, wr_id: int) -> Made:
        region = self._region
        if region is None:
            if length:
                raise ValueError("a receive without a region has no room for data")
            return self._maker.receive(0, 0, 0, wr_id)
        inside = (
            region.address <= address and 0 <= length <= region.address + region.length - address
        )
        if length and not inside:
            raise ValueError(f"{length} bytes at {address} do not lie within the region")
        return self._maker.receive(address, length, region.lkey, wr_id)

    def post(self, count: int = 1) -> None:
        """Post it `count` times."""
        if self._region is not None:
            self._region.check_open()
        post, wr = self._maker.live_receive.call, self._made[0].wr
        try:
            for _ in range(count):
                post(wr)
        except self._maker.error as error:
            raise self._maker.failed(error, "post a receive") from error

    def place(self, address: int, length: int, wr_id: int = 0) -> None:
        """Place and name it."""
        made = self._make(address, length, wr_id)
        self._maker.drop(self._made)
        self._made[0] = made
