"""Buffers that are Python objects (3.12) and close the connection while it takes their bytes."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from l5 import native

pytestmark = [
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.skipif(sys.version_info < (3, 12), reason="needs buffers that are Python objects"),
]


class Trap:
    """A buffer that does something when it is asked for its bytes, or when they are given back."""

    def __init__(
        self, *, taken: Callable[[], Any] = bool, released: Callable[[], Any] = bool
    ) -> None:
        self.taken, self.released = taken, released

    def __buffer__(self, flags: int) -> memoryview:
        self.taken()
        return memoryview(b"payload")

    def __release_buffer__(self, view: memoryview) -> None:
        self.released()


@pytest.fixture
def ring() -> Iterator[Any]:
    fd = native.lib.l5_segment_create(65536)
    ring = native.Ring(fd, 65536, False, -1, 1024, 1024, False)
    os.close(fd)
    ring.in_flight_max = 10
    ring.peer_window = ring.data_allowed = 1 << 20
    native.Poller(0).add(ring, object())
    yield ring
    ring.close()


CALLS: list[Callable[[Any, Any], Any]] = [
    lambda ring, payload: ring.request(payload),
    lambda ring, payload: ring.send(payload),
    lambda ring, payload: ring.try_send(1, 0, 1, payload),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("moment", ["taken", "released"])
def test_close_from_within_a_buffer(ring: Any, call: Callable[..., Any], moment: str) -> None:
    trap: Any = Trap(**{moment: ring.close})
    try:
        call(ring, trap)
    except Exception as error:
        assert type(error).__name__ == "ClosedResourceError"
    assert ring.frames_sent == (moment == "released")
