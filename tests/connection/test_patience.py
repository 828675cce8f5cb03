"""Where letting the event loop run means to lose the GIL, it runs more seldom, and not never."""

from __future__ import annotations

import time
from typing import Any

import pytest

from l5 import native
from l5.testing._harness import Harness

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

BATCH = 64
LOST_NS = 10_000_000


class TestPatience(Harness):
    transport = "shm"

    def url(self, directory: str) -> str:
        return f"l5+shm://{directory}/s"

    async def test_the_loop_waits_for_as_long_as_the_gil_was_lost(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            ring: Any = client._session.ring
            theirs: Any = server._session.ring
            poller = client._session.hub.poller
            assert poller is not None

            def send_a_batch() -> list[Any]:
                assert theirs.try_receive() is None
                poller.breathe()
                sent = [ring.send(b"") for _ in range(BATCH)]
                while theirs.try_receive() is not None:
                    pass
                ring.data_allowed = ring.data_sent + (1 << 16)
                return sent

            usual = [True] * (BATCH - 1) + [None]  # None: the loop is due
            poller.lost(5_000)  # a look at the descriptors that took as long as it does
            assert send_a_batch() == usual
            began, sent = 0, usual
            for _ in range(50):
                began = time.monotonic_ns()
                poller.lost(LOST_NS)
                sent = send_a_batch()
                if time.monotonic_ns() - began < LOST_NS:
                    break
            assert sent == [True] * BATCH
            assert time.monotonic_ns() - began < LOST_NS, "this machine never let it be in time"
            time.sleep(LOST_NS / 1e9)
            assert send_a_batch() == usual

    async def test_an_hour_is_not_waited_for(self, directory: str) -> None:
        async with self.pair(directory) as (client, _):
            poller = client._session.hub.poller
            assert poller is not None
            poller.lost(3_600_000_000_000)
            assert poller.patient_until_ns <= time.monotonic_ns() + LOST_NS
