"""What carries bytes over a simulated fabric: single steps, and what is checked before one."""

from __future__ import annotations

import ctypes

from . import _constants as c
from ._simulated_parts import (
    NEEDS_RECEIVE,
    READS_AND_ATOMICS,
    Endpoint,
    Piece,
    Port,
    Receive,
    Work,
)
from ._simulated_plans import Plan
from ._values import Completion

ACCESS_OF = {
    c.OP_WRITE: c.REMOTE_WRITE,
    c.OP_WRITE_WITH_IMM: c.REMOTE_WRITE,
    c.OP_READ: c.REMOTE_READ,
    c.OP_COMPARE_AND_SWAP: c.REMOTE_ATOMIC,
    c.OP_FETCH_AND_ADD: c.REMOTE_ATOMIC,
}


class Carrier:
    """Carries out steps; which one is next is not its business."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.packets = 0
        self.acknowledgements = 0

    def issue(self, endpoint: Endpoint, target: Endpoint) -> None:
        """Send one packet of the oldest request that is not all sent."""
        work = endpoint.waiting[0]
        assert endpoint.agreed is not None and target.agreed is not None
        if not work.begun:
            work.begun = True
            work.refused = self._refusal(endpoint, target, work)
        if work.refused:
            if not endpoint.reads:  # what was asked for before is answered before
                endpoint.fail(work, work.refused)
                if work.refused != c.LOCAL_PROTECTION_ERROR:
                    target.fail()
            return
        self.packets += 1
        if work.opcode in READS_AND_ATOMICS:
            endpoint.waiting.popleft()
            work.pieces = self._pieces(work)
            endpoint.reads.append(work)
            return
        count = min(work.length - work.sent, c.MTU_BYTES[endpoint.agreed.mtu])
        data = self._source(work, count)
        base = work.remote_address
        if work.receive is not None and work.opcode != c.OP_WRITE_WITH_IMM:
            base = work.receive.address
        self._cut(endpoint, work.ordinal, base + work.sent, data)
        work.sent += count
        if work.sent == work.length:
            endpoint.waiting.popleft()
            self._announce(endpoint, target, work)
            work.executed = True
            self.acknowledgements += 1

    def _source(self, work: Work, count: int) -> bytes:
        if work.inline is not None:
            return work.inline[work.sent : work.sent + count]
        return ctypes.string_at(work.address + work.sent, count) if count else b""

    def _cut(self, endpoint: Endpoint, ordinal: int, address: int, data: bytes) -> None:
        start = 0
        for length in self.plan.cuts(address, len(data)):
            if length:
                piece = Piece(ordinal, address + start, data[start : start + length])
                endpoint.landing.append(piece)
            start += length

    def _announce(self, endpoint: Endpoint, target: Endpoint, work: Work) -> None:
        """Let the receive's completion follow the bytes."""
        receive = work.receive
        if receive is None:
            return
        has_imm = work.opcode in (c.OP_WRITE_WITH_IMM, c.OP_SEND_WITH_IMM)
        opcode = c.WC_RECEIVE_WITH_IMM if work.opcode == c.OP_WRITE_WITH_IMM else c.WC_RECEIVE
        completion = Completion(
            receive.wr_id,
            c.SUCCESS,
            opcode,
            work.length,
            work.immediate if has_imm else None,
            target.number,
        )
        endpoint.landing.append(Piece(work.ordinal, 0, b"", (target, completion)))

    def _refusal(self, endpoint: Endpoint, target: Endpoint, work: Work) -> int:
        """Check all that both ends check before anything moves; SUCCESS if nothing is wrong."""
        assert endpoint.agreed is not None and target.agreed is not None
        into = c.LOCAL_WRITE if work.opcode in READS_AND_ATOMICS else 0
        local = work.memory.allows(endpoint.domain, work.address, work.length, into)
        if work.inline is None and work.length and not local:
            return c.LOCAL_PROTECTION_ERROR
        mtus = c.MTU_BYTES
        if work.length > mtus[target.agreed.mtu] < mtus[endpoint.agreed.mtu]:
            return c.REMOTE_INVALID_REQUEST
        if work.opcode in READS_AND_ATOMICS:
            if len(endpoint.reads) >= target.agreed.dest_rd_atomic:
                return c.REMOTE_INVALID_REQUEST
            return c.SUCCESS  # its rights are checked when it is carried out
        writes = work.opcode in (c.OP_WRITE, c.OP_WRITE_WITH_IMM)
        if writes and not self._granted(target, work):
            return c.REMOTE_ACCESS_ERROR
        if work.opcode not in NEEDS_RECEIVE:
            return c.SUCCESS
        receive = work.receive = target.receives.popleft()
        if work.opcode == c.OP_WRITE_WITH_IMM:
            return c.SUCCESS
        status = self._receivable(target, receive, work.length)
        if status != c.SUCCESS:
            completion = Completion(receive.wr_id, status, c.WC_RECEIVE, 0, None, target.number)
            target.receive_to.push(completion, target, -1)
            if status == c.LOCAL_LENGTH_ERROR:
                return c.REMOTE_INVALID_REQUEST
            return c.REMOTE_OPERATION_ERROR
        return c.SUCCESS

    def _receivable(self, target: Endpoint, receive: Receive, length: int) -> int:
        if length > receive.length:
            return c.LOCAL_LENGTH_ERROR
        memory = receive.memory
        if length and (
            memory is None
            or not memory.allows(target.domain, receive.address, length, c.LOCAL_WRITE)
        ):
            return c.LOCAL_PROTECTION_ERROR
        return c.SUCCESS

    def _granted(self, target: Endpoint, work: Work) -> bool:
        access = ACCESS_OF[work.opcode]
        if not target.options.remote_access & access:
            return False
        if work.length == 0:
            return True
        memory = target.port.regions.get(work.rkey)
        return memory is not None and memory.allows(
            target.domain, work.remote_address, work.length, access
        )

    def fetch(self, endpoint: Endpoint, target: Endpoint, index: int) -> None:
        """Carry out one piece of the oldest read, or one half of the oldest atomic."""
        work = endpoint.reads[0]
        local = work.memory.allows(endpoint.domain, work.address, work.length, c.LOCAL_WRITE)
        if not local or not self._granted(target, work):
            if target.port.atomic_by is work:
                target.port.atomic_by = None
            endpoint.fail(work, c.REMOTE_ACCESS_ERROR if local else c.LOCAL_PROTECTION_ERROR)
            if local:
                target.fail()
            return
        if work.opcode != c.OP_READ:
            self._atomic(work, target.port)
        else:
            offset, length = work.pieces.pop(index)
            ctypes.memmove(work.address + offset, work.remote_address + offset, length)
            work.executed = not work.pieces
        if work.executed:
            endpoint.reads.popleft()
            self.packets += 1

    def _pieces(self, work: Work) -> list[tuple[int, int]]:
        pieces: list[tuple[int, int]] = []
        start = 0
        # A write's last byte lands alone; a read has no such last byte.
        for length in self.plan.cuts(work.remote_address, work.length + 1)[:-1]:
            pieces.append((start, length))
            start += length
        return pieces

    def _atomic(self, work: Work, port: Port) -> None:
        word = ctypes.c_uint64.from_address(work.remote_address)
        if work.old is None:
            work.old = word.value
            port.atomic_by = work
            return
        if work.opcode == c.OP_FETCH_AND_ADD:
            word.value = work.old + work.operand & (1 << 64) - 1
        elif work.old == work.operand:
            word.value = work.swap
        ctypes.c_uint64.from_address(work.address).value = work.old
        port.atomic_by = None
        work.executed = True

    def land(self, piece: Piece) -> None:
        if piece.notice is None:
            ctypes.memmove(piece.address, piece.data, len(piece.data))
            return
        target, completion = piece.notice
        target.receive_to.push(completion, target, -1)
