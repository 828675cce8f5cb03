"""Rings, pollers and slots in cycles are collected, and their memory with the last view."""

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from l5 import native

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)

RING_BYTES = 65536


class Holder:
    """Refers to a ring, and is referred to by it."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring
        self.more: list[Any] = []


@pytest.fixture
def memory() -> Iterator[int]:
    fd = native.lib.l5_segment_create(RING_BYTES)
    yield fd
    os.close(fd)


def ring_over(fd: int, *, server: bool = False) -> Any:
    limit = RING_BYTES // 4
    return native.Ring(fd, RING_BYTES, server, -1, limit, limit, False)


def mapped(fd: int) -> bool:
    inode = f" {os.fstat(fd).st_ino} "
    return any(inode in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_ring_that_its_server_refers_to(memory: int) -> None:
    ring = ring_over(memory)
    ring.server = Holder(ring)
    gone = weakref.ref(ring.server)
    assert mapped(memory)
    del ring
    gc.collect()
    assert gone() is None and not mapped(memory)


@pytest.mark.parametrize("rings", [1, 20])
def test_a_poller_and_its_rings(memory: int, rings: int) -> None:
    poller = native.Poller(0)
    holders = [Holder(ring_over(memory)) for _ in range(rings)]
    for holder in holders:
        holder.more.append(poller)
        poller.add(holder.ring, holder)
    gone = [weakref.ref(holder) for holder in holders]
    del holders
    del holder  # pyright: ignore[reportPossiblyUnboundVariable]
    gc.collect()
    assert poller.total == rings and all(one() is not None for one in gone)  # still in use
    del poller
    gc.collect()
    assert not any(one() for one in gone) and not mapped(memory)


def test_a_ring_collected_under_a_view(memory: int) -> None:
    """The memory stays for as long as somebody can look at it."""
    ring = ring_over(memory)
    holder = Holder(ring)
    poller = native.Poller(0)
    poller.add(ring, holder)
    slot = ring.reserve(100)
    view = memoryview(slot)
    holder.more += [slot, poller]
    gone = weakref.ref(holder)
    view[:3] = b"abc"
    ring.close()
    del ring, slot, poller, holder
    gc.collect()
    assert gone() is None
    assert mapped(memory) and bytes(view[:3]) == b"abc"
    view.release()
    gc.collect()
    assert not mapped(memory)


def test_a_view_that_is_part_of_the_cycle(memory: int) -> None:
    ring = ring_over(memory)
    holder = Holder(ring)
    ring.server = holder
    slot = ring.reserve(100)
    slot.freed = holder.more.clear
    holder.more += [slot, memoryview(slot)]
    gone = weakref.ref(holder)
    del ring, slot, holder
    gc.collect()
    assert gone() is None and not mapped(memory)
