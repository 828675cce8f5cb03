"""Two connected queue pairs on one device, and the memory of both ends."""

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from l5.rdma import verbs
from l5.rdma._discover import Place, locate
from l5.rdma.verbs import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    SUCCESS,
    Completion,
    QueuePairOptions,
)

ALL_ACCESS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
BYTES = 1 << 16
PATIENCE_S = 20.0


class Area:
    """Registered memory that a test can read and write."""

    def __init__(
        self, domain: verbs.ProtectionDomain, size_bytes: int = BYTES, access: int = ALL_ACCESS
    ) -> None:
        self.map = mmap.mmap(-1, size_bytes)
        self.view = memoryview(self.map)
        self.address = verbs.address_of(self.view)
        self.region = domain.register(self.address, size_bytes, access, owner=self.view)

    def close(self) -> None:
        self.region.close()
        self.view.release()


class End:
    """One end: a protection domain, memory, completion queues, a queue pair."""

    def __init__(
        self,
        device: verbs.Device,
        options: QueuePairOptions,
        *,
        access: int = ALL_ACCESS,
        depth: int = 512,
        events: bool = False,
    ) -> None:
        self.domain = device.protection_domain()
        self.area = Area(self.domain, access=access)
        self.sends = device.completion_queue(depth, events=events)
        self.receives = device.completion_queue(depth, events=events)
        self.pair = self.domain.queue_pair(self.sends, self.receives, options)

    def close(self) -> None:
        for resource in (self.pair, self.sends, self.receives, self.area, self.domain):
            resource.close()


class Rig:
    """Both ends, and how to wait for what happens between them."""

    def __init__(self, device: verbs.Device, place: Place) -> None:
        self.device = device
        self.place = place
        self.ends: list[End] = []

    def end(self, options: QueuePairOptions | None = None, **more: int) -> End:
        end = End(self.device, options or QueuePairOptions(), **more)
        self.ends.append(end)
        return end

    def connect(self, one: End, other: End, *, timeout: int = 14, **more: int) -> None:
        gid = self.place.gid
        mine, theirs = one.pair.own_address(gid), other.pair.own_address(gid)
        for end, own, remote in ((one, mine, theirs), (other, theirs, mine)):
            options = verbs.agree(own, remote, timeout=timeout)
            if more:
                options = verbs.ConnectOptions(
                    **{
                        "mtu": options.mtu,
                        "rd_atomic": options.rd_atomic,
                        "dest_rd_atomic": options.dest_rd_atomic,
                        "timeout": timeout,
                        **more,
                    }
                )
            end.pair.connect(remote, options, gid=gid)

    def pair(
        self,
        options: QueuePairOptions | None = None,
        *,
        timeout: int = 14,
        access: int = ALL_ACCESS,
        events: bool = False,
        **more: int,
    ) -> tuple[End, End]:
        one = self.end(options, events=events)
        other = self.end(options, access=access, events=events)
        self.connect(one, other, timeout=timeout, **more)
        return one, other

    def close(self) -> None:
        for end in self.ends:
            end.close()


def completions(queue: verbs.CompletionQueue, count: int) -> list[Completion]:
    """Poll until there are `count` completions."""
    found: list[Completion] = []
    until(lambda: found.extend(queue.poll(count - len(found))) or len(found) == count)
    return found


def completed(queue: verbs.CompletionQueue, count: int = 1) -> list[Completion]:
    """Poll until there are `count` completions, all of them good."""
    found = completions(queue, count)
    assert [one.text for one in found if one.status != SUCCESS] == []
    return found


def quiet(*queues: verbs.CompletionQueue, seconds: float = 0.02) -> None:
    """Check that no completion comes for a moment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert [list(queue.poll()) for queue in queues] == [[] for _ in queues]


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the limit is for what never comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"


@contextmanager
def rig_on(backend: verbs.Backend, name: str, address: str) -> Iterator[Rig]:
    """Open a device, and close it and all that was made, in order."""
    with backend.open(name) as device:
        rig = Rig(device, locate([device], address))
        try:
            yield rig
        finally:
            rig.close()
