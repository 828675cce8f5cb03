"""A peer in another thread of this process: who waits for it does not leave it their CPU."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from l5 import native
from l5._cpu import allowed_cpus

pytestmark = [
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.skipif(allowed_cpus() < 2, reason="needs two CPUs"),
]

RING_BYTES = 1 << 16
LOST_NS = 1_000_000
TIMES, TIMES_MAX = 100, 100_000
"""The scheduler may move us in between, now and then."""


@contextmanager
def ends(bells: tuple[int, int]) -> Generator[tuple[Any, Any, Any]]:
    """Make both ends of a ring, with two pollers as in two threads; the client's is the third."""
    fd = native.lib.l5_segment_create(RING_BYTES)
    rings: list[Any] = []
    pollers = [native.Poller(0), native.Poller(0)]
    pollers[0].movable = allowed_cpus()
    try:
        for poller, server, bell in zip(pollers, (False, True), bells, strict=True):
            ring: Any = native.Ring(fd, RING_BYTES, server, bell, 1024, 1024, False)
            rings.append(ring)
            ring.in_flight_max, ring.spin_ns = 1 << 20, 1000
            poller.add(ring, object())
    finally:
        os.close(fd)
    try:
        yield rings[0], rings[1], pollers[0]
    finally:
        for ring in rings:
            ring.close()


def wait_on_one_cpu(client: Any, server: Any, poller: Any) -> None:
    """Have the client wait for a server that was seen on its CPU, while a thread computes."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    os.sched_setaffinity(0, cpus)  # it may leave, and has no reason to
    assert server.try_send(1, 0, 1, b"")  # carries the number of the CPU
    assert client.try_receive() is not None
    poller.lost(LOST_NS)
    assert isinstance(client.request(b"x"), int)  # nobody answers
    while server.try_receive() is not None:
        pass


def test_the_cpu_is_left_to_another_process() -> None:
    """As the other test's would be, without its socket."""
    with ends((-1, -1)) as (client, server, poller):
        for _ in range(TIMES_MAX):
            wait_on_one_cpu(client, server, poller)
            if poller.moves:
                return
        pytest.fail("it stays where it is")


def test_the_cpu_is_not_left_to_a_thread_of_this_process() -> None:
    """It cannot use that while we have the GIL."""
    left, right = socket.socketpair()
    with left, right, ends((left.fileno(), right.fileno())) as (client, server, poller):
        for times in range(TIMES_MAX):
            wait_on_one_cpu(client, server, poller)
            assert poller.moves == 0
            if times > TIMES and poller.yields:  # which is what it does instead
                return
        pytest.fail("it does not yield")
