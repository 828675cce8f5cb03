"""One end of a queue pair that sends fixed-size messages in one of the ways of L5's Figure 8.

    memory of an end   | outgoing: size bytes | mark |   ...   | incoming: size bytes | mark |
                       0                              INCOMING

Each message begins and ends with a byte that counts up, and the mark is another one: what the
receiver looks at is never what stood there before.
"""

import mmap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from l5.rdma import verbs

INCOMING = 1 << 17
SIZE_MAX = INCOMING - 64
DEPTH = 64
PATIENCE_SECONDS = 30.0
WAYS = {
    "polling": "one write; front and back of the message are polled",
    "two writes": "a write of the message and one of a flag, which is polled",
    "chained": "the same two writes, handed over by one post",
    "immediate": "a write with an immediate; the completion queue is polled",
    "send + receive": "a send; the completion queue is polled",
}
QUEUED = ("immediate", "send + receive")


class Lost(Exception):
    """A message did not arrive in time, or the queue pair broke."""


@attrs.frozen
class Counts:
    """What an end has used since it was made."""

    posts: int
    completions: int

    def since(self, before: "Counts") -> "Counts":
        return Counts(self.posts - before.posts, self.completions - before.completions)


class End:
    """See the module's text; closed in order by `close`."""

    def __init__(self, device: verbs.Device, gid: verbs.Gid, way: str, size_bytes: int) -> None:
        if not 2 <= size_bytes <= SIZE_MAX:
            raise ValueError(f"messages have 2 to {SIZE_MAX} bytes, not {size_bytes}")
        self._way, self._size, self._gid = way, size_bytes, gid
        self._memory = mmap.mmap(-1, 2 * INCOMING)
        self._view = memoryview(self._memory)
        self._address = verbs.address_of(self._memory)
        self._sent_queue = device.completion_queue(2 * DEPTH)
        self._received_queue = device.completion_queue(2 * DEPTH)
        self._domain = device.protection_domain()
        access = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE
        self._region = self._domain.register(
            self._address, len(self._memory), access, owner=self._memory
        )
        self._pair = self._domain.queue_pair(
            self._sent_queue,
            self._received_queue,
            verbs.QueuePairOptions(send_depth=DEPTH, receive_depth=DEPTH),
        )
        self._slots = verbs.SendSlots(DEPTH)
        self._receive = self._pair.prepare_receive(
            self._region, address=self._address + INCOMING, length=size_bytes
        )
        self._inline = verbs.INLINE if size_bytes <= self._pair.inline_bytes else 0
        self._completions = 0
        self._post: Callable[[int], None] = self._not_connected

    def about(self) -> dict[str, Any]:
        """Return what the other end has to know, as JSON takes it."""
        own = attrs.asdict(self._pair.own_address(self._gid))
        own["gid"] = own["gid"].hex()
        return own | {"address": self._address + INCOMING, "rkey": self._region.rkey}

    def connect(self, about: Mapping[str, Any]) -> None:
        fields: dict[str, Any] = {
            name: about[name] for name in attrs.fields_dict(verbs.QueuePairAddress)
        }
        fields["gid"] = bytes.fromhex(about["gid"])
        remote = verbs.QueuePairAddress(**fields)
        agreed = verbs.agree(self._pair.own_address(self._gid), remote)
        self._pair.connect(remote, agreed, gid=self._gid)
        if self._way in QUEUED:
            self._receive.post(DEPTH // 2)
        self._post = self._prepare(about["address"], about["rkey"])

    def close(self) -> None:
        for part in (
            self._pair,
            self._sent_queue,
            self._received_queue,
            self._region,
            self._domain,
        ):
            part.close()
        self._view.release()

    @property
    def counts(self) -> Counts:
        return Counts(self._slots.posted, self._completions)

    # ---- sending -----------------------------------------------------------------------------

    def _not_connected(self, mark: int) -> None:
        raise Lost(f"message {mark}: the end is not connected")

    def _prepare(self, address: int, rkey: int) -> Callable[[int], None]:
        """Return the way's post; it is given the mark of the message."""
        kinds = {
            "immediate": verbs.OP_WRITE_WITH_IMM,
            "send + receive": verbs.OP_SEND,
        }
        opcode = kinds.get(self._way, verbs.OP_WRITE)
        whole = self._pair.prepare(
            opcode, self._region, address=self._address, remote_address=address, rkey=rkey
        )
        size, inline, slots = self._size, self._inline, self._slots
        if self._way not in ("two writes", "chained"):
            return lambda mark: whole.post(size, slots.take(1, inline), mark)
        flag = self._pair.prepare(
            verbs.OP_WRITE,
            self._region,
            address=self._address + size,
            remote_address=address + size,
            rkey=rkey,
        )
        pair = self._pair.prepare_pair(whole, flag, chained=self._way == "chained")
        always = verbs.INLINE
        return lambda mark: pair.post(size, inline, slots.take(2, always))

    def send(self, number: int) -> None:
        """Send message `number`, counted from 0; waits for a slot if need be."""
        mark = number % 255 + 1
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._slots.free < 2 or (not self._inline and self._slots.outstanding > DEPTH // 2):
            self._settle()
            if time.monotonic() > deadline:
                raise Lost(f"message {number}: no completion of those before it")
        view = self._view
        view[0] = view[self._size - 1] = view[self._size] = mark
        self._post(mark)

    def _settle(self) -> None:
        for completion in self._sent_queue.poll():
            if not completion.ok:
                raise Lost(completion.text)
            self._completions += 1
            self._slots.done()

    # ---- receiving ---------------------------------------------------------------------------

    def wait(self, number: int) -> None:
        """Poll until message `number` is here."""
        arrived = self._queued if self._way in QUEUED else self._marked
        deadline = time.monotonic() + PATIENCE_SECONDS
        mark = number % 255 + 1
        while not arrived(mark):
            self._settle()
            if time.monotonic() > deadline:
                raise Lost(f"message {number} did not arrive in {PATIENCE_SECONDS:g} s")

    def _marked(self, mark: int) -> bool:
        view, size = self._view, self._size
        if self._way == "polling":
            return view[INCOMING] == mark and view[INCOMING + size - 1] == mark
        return view[INCOMING + size] == mark

    def _queued(self, mark: int) -> bool:
        for completion in self._received_queue.poll(1):
            if not completion.ok:
                raise Lost(completion.text)
            self._completions += 1
            self._receive.post()
            if self._view[INCOMING + self._size - 1] != mark:
                raise Lost("another message than the one that was sent")
            return True
        return False


def packets(device: str) -> int | None:
    """Return how many packets a device has sent, where its driver counts them as Soft-RoCE's."""
    path = Path("/sys/class/infiniband", device, "ports/1/hw_counters/sent_pkts")
    return int(path.read_text()) if path.exists() else None
