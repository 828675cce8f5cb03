"""What both bindings to libibverbs say and check in the same way, however they call it."""

from __future__ import annotations

import errno
import secrets
from typing import TypeVar

from . import _constants as c
from . import verbs
from ._values import PSN_MAX, Gid, QueuePairAddress, QueuePairOptions

T = TypeVar("T")


class LibraryCompletionQueue(verbs.CompletionQueue):
    """A completion queue; `descriptor` is that of its event channel, None without one."""

    def __init__(self, device: verbs.Device, depth: int, descriptor: int | None) -> None:
        super().__init__(device)
        self.depth: int = depth
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor of its events."""
        return self._need_events("wait for completions")

    def _need_events(self, call: str) -> int:
        self.check_open()
        if self._descriptor is None:
            raise verbs.VerbsError(call, 0, "the queue was made without events")
        return self._descriptor


class LibraryQueuePair(verbs.QueuePair):
    """A queue pair."""

    def __init__(
        self,
        domain: verbs.ProtectionDomain,
        send_queue: verbs.CompletionQueue,
        receive_queue: verbs.CompletionQueue,
        options: QueuePairOptions,
        number: int,
        inline_bytes: int,
    ) -> None:
        super().__init__(domain, send_queue, receive_queue)
        self.device: verbs.Device = domain.device
        self.number: int = number
        self.send_depth: int = options.send_depth
        self.receive_depth: int = options.receive_depth
        self.inline_bytes: int = inline_bytes
        self.psn: int = secrets.randbelow(PSN_MAX + 1)
        self._access = options.remote_access

    def own_address(self, gid: Gid, *, port: int = 1) -> QueuePairAddress:
        """Say how it is reached."""
        self.check_open()
        state, limits = self.device.port(port), self.device.limits
        return QueuePairAddress(
            number=self.number,
            psn=self.psn,
            gid=gid.raw,
            lid=state.lid,
            active_mtu=state.active_mtu,
            rd_atomic=limits.rd_atomic,
            init_rd_atomic=limits.init_rd_atomic,
        )

    def _routed(self, remote: QueuePairAddress, port: int) -> bool:
        # Within an InfiniBand subnet a local address will do; elsewhere the GID is the address.
        return self.device.port(port).link_layer == c.LINK_ETHERNET or remote.lid == 0

    def _own(self, region: verbs.MemoryRegion, kind: type[T]) -> T:
        self.check_open()
        region.check_open()
        if not isinstance(region, kind):
            raise TypeError(f"the region comes from another backend: {type(region).__name__}")
        return region


def queue_pair_parts(
    domain: verbs.ProtectionDomain,
    queues: tuple[verbs.CompletionQueue, verbs.CompletionQueue],
    kind: type[T],
    options: QueuePairOptions,
) -> tuple[T, T, tuple[int, int, int]]:
    """Return the queues as the binding's own, and the depths and inline bytes, all checked."""
    send_queue, receive_queue = queues
    if not (isinstance(send_queue, kind) and isinstance(receive_queue, kind)):
        raise TypeError("the completion queues must come from the same device")
    for resource in (domain, *queues):
        resource.check_open()
    counts = (options.send_depth, options.receive_depth, options.inline_bytes)
    if not all(0 <= count < 1 << 32 for count in counts):
        raise verbs.verbs_error("create a queue pair", errno.EINVAL)
    return send_queue, receive_queue, counts
