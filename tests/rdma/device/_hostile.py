"""A hostile end: the queue pair of a connection in the hands of somebody who knows verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from l5.rdma import verbs
from l5.rdma._end import End
from tests.rdma.contract._rig import until
from tests.rdma.mailbox._rig import Pair

Found = TypeVar("Found")
MINE = 0xBAD
"""What completions of hostile requests are called."""


class Hand:
    """Posts what it likes on a queue pair, from memory of its own."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.source = end.memory.address

    def post(self, opcode: int, address: int, rkey: int, length: int, immediate: int = 0) -> None:
        """Post one request over the first bytes of this end's memory; ask for its completion."""
        request = self.end.pair.prepare(
            opcode,
            self.end.staging,
            address=self.source,
            remote_address=address,
            rkey=rkey,
            wr_id=MINE,
        )
        self.end.slots.take(1, verbs.SIGNALED)
        request.post(length, verbs.SIGNALED, immediate)

    def put(self, address: int, rkey: int, data: bytes, opcode: int = verbs.OP_WRITE) -> int:
        """Write `data`; return the status of the completion."""
        self.end.memory.view[: len(data)] = data
        self.post(opcode, address, rkey, len(data))
        return self.status()

    def status(self) -> int:
        """Wait for the completion of what was posted; what else completes is nobody's business."""
        found: list[int] = []
        until(lambda: bool(found) or found.extend(self._mine()) or bool(found))
        return found[0]

    def _mine(self) -> list[int]:
        completions = self.end.queue.poll(1)
        mine = [one.status for one in completions if one.wr_id == MINE]
        self.end.slots.done(sum(status == verbs.SUCCESS for status in mine))
        return mine

    def to_error(self) -> None:
        """Put the queue pair into error."""
        self.end.pair.to_error()


def served(pair: Pair, payload: bytes = b"still here") -> None:
    """Check that a request goes to the server and its answer comes back."""
    assert pair.ask(payload)
    asked = wait_for(pair.server.try_receive)
    assert asked.payload == payload
    assert pair.answer(payload[::-1])
    assert wait_for(pair.client.try_receive).payload == payload[::-1]


def wait_for(look: Callable[[], Found | None]) -> Found:
    """Look until there is something."""
    found: list[Found] = []

    def looked() -> bool:
        one = look()
        if one is not None:
            found.append(one)
        return bool(found)

    until(looked)
    return found[0]
