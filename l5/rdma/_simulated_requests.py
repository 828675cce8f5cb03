"""Prepared requests of the simulated device."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import Protocol

from . import _constants as c
from . import verbs
from ._simulated_parts import READS_AND_ATOMICS, Memory, Receive, Work


class Poster(Protocol):
    """What of a queue pair its requests use."""

    inline_bytes: int

    def post(self, works: Sequence[Work]) -> None:
        """Take requests."""

    def post_receives(self, receives: Sequence[Receive]) -> None:
        """Take receives."""


class SimulatedRequest(verbs.SendRequest):
    """A prepared request."""

    def __init__(
        self,
        pair: Poster,
        opcode: int,
        memory: Memory,
        address: int,
        remote_address: int,
        rkey: int,
        wr_id: int,
    ) -> None:
        self.pair, self.opcode, self.memory = pair, opcode, memory
        self.address, self.remote_address, self.rkey = address, remote_address, rkey
        self.wr_id = wr_id

    def work(self, length: int, flags: int, immediate: int = 0) -> Work:
        """Make what is posted; inline data is copied now."""
        inline = None
        if flags & c.INLINE:
            if length > self.pair.inline_bytes or self.opcode in READS_AND_ATOMICS:
                raise verbs.verbs_error("post", errno.EINVAL)
            inline = ctypes.string_at(self.address, length)
        return Work(
            self.opcode,
            self.memory,
            self.address,
            length,
            flags,
            self.wr_id,
            self.remote_address,
            self.rkey,
            immediate,
            inline=inline,
        )

    def post(self, length: int, flags: int = 0, immediate: int = 0) -> None:
        """Post it."""
        self.pair.post([self.work(length, flags, immediate)])

    def post_at(
        self, address: int, remote_address: int, length: int, flags: int = 0, immediate: int = 0
    ) -> None:
        """Place and post it."""
        self.address, self.remote_address = address, remote_address
        self.pair.post([self.work(length, flags, immediate)])

    def place(self, address: int, remote_address: int, rkey: int | None = None) -> None:
        """Place it."""
        self.address, self.remote_address = address, remote_address
        self.rkey = self.rkey if rkey is None else rkey

    def set_id(self, wr_id: int) -> None:
        """Name it."""
        self.wr_id = wr_id


class SimulatedPair(verbs.RequestPair):
    """A row and its flag."""

    def __init__(
        self,
        pair: Poster,
        row: SimulatedRequest,
        flag: SimulatedRequest,
        chained: bool,
    ) -> None:
        self._pair, self._row, self._flag, self._chained = pair, row, flag, chained

    def post(
        self, length: int, row_flags: int = 0, flag_flags: int = 0, immediate: int = 0
    ) -> None:
        """Post both."""
        row, flag = self._row.work(length, row_flags), self._flag.work(1, flag_flags, immediate)
        if self._chained:
            self._pair.post([row, flag])
        else:
            self._pair.post([row])
            self._pair.post([flag])


class SimulatedReads(verbs.ReadBatch):
    """A batch of reads."""

    def __init__(self, request: SimulatedRequest, count_max: int) -> None:
        self._request = request
        self.count_max = count_max

    def post(
        self, reads: Sequence[tuple[int, int, int]], flags: int = c.SIGNALED, wr_id: int = 0
    ) -> None:
        """Post them, the last one with the flags."""
        if not 0 < len(reads) <= self.count_max:
            raise ValueError(f"a batch has 1 to {self.count_max} reads, not {len(reads)}")
        works: list[Work] = []
        for address, remote_address, length in reads:
            self._request.place(address, remote_address)
            works.append(self._request.work(length, 0))
        works[-1].flags, works[-1].wr_id = flags, wr_id
        self._request.pair.post(works)


class SimulatedAtomic(verbs.AtomicRequest):
    """A prepared atomic."""

    def __init__(self, request: SimulatedRequest) -> None:
        self._request = request

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
            raise ValueError(f"an atomic's address is a multiple of 8, not {remote_address:#x}")
        self._request.remote_address = remote_address
        work = self._request.work(8, flags)
        work.operand, work.swap, work.wr_id = operand, swap, wr_id
        self._request.pair.post([work])


class SimulatedReceive(verbs.ReceiveRequest):
    """A prepared receive."""

    def __init__(
        self,
        pair: Poster,
        memory: Memory | None,
        address: int,
        length: int,
        wr_id: int,
    ) -> None:
        self._pair, self._memory = pair, memory
        self._place = (address, length, wr_id)

    def place(self, address: int, length: int, wr_id: int = 0) -> None:
        """Place it."""
        self._place = (address, length, wr_id)

    def post(self, count: int = 1) -> None:
        """Post it so often."""
        self._pair.post_receives([Receive(self._memory, *self._place) for _ in range(count)])
