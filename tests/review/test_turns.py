"""The event loop has its turn, whatever the traffic: else nobody runs, and nothing is cancelled."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import native
from l5._frames import Kind
from l5.testing._harness import Harness

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

LOST_NS = 10_000_000
BACK_NS = 1_000_000
ENDURED_NS = 30_000_000
"""Longest that the loop is patient, beside a thread that computes."""
CALLS_MAX = 400
STREAK_MAX = 64
MANY, BUSY_NS = 400, 250_000
QUICK_MAX, QUICK_TURN_NS = 20_000, 50_000
"""More quick requests than one turn handles, and how long a turn lasts at least."""
BATCH, BATCH_NS = 256, 150_000
"""Requests that one call sends, and how long as many again may follow."""
SLOW_SERVER = """
import time, l5.blocking
def handle(request):
    until = time.monotonic_ns() + {busy_ns}
    while time.monotonic_ns() < until:
        pass
    return request
with l5.blocking.serve(handle, "{url}") as server:
    print("up", flush=True)
    server.serve_forever()
"""


def compute(ns: int) -> None:
    """Be busy for at least so long."""
    until = time.monotonic_ns() + ns
    while time.monotonic_ns() < until:
        pass


class TestTurns(Harness):
    transport = "shm"

    def url(self, directory: str) -> str:
        return f"l5+shm://{directory}/s"

    @asynccontextmanager
    async def asked_by_hand(
        self, directory: str
    ) -> AsyncGenerator[tuple[Any, Any, Callable[[Any], bool]]]:
        """Yield the poller, a ring to ask by, and what serves the other one's requests in C."""
        async with self.pair(directory) as (client, server):
            asking: Any = client._session.ring
            serving: Any = server._session.ring
            poller: Any = client._session.hub.poller
            poller.remove(asking)  # whose answers would be news
            owner = object()
            serving.server = owner
            try:
                yield poller, asking, lambda handle: poller.serve(owner, handle, False)
            finally:
                serving.server = None
                poller.add(asking, client._session)

    async def test_slow_handlers_beside_a_computing_thread(self, directory: str) -> None:
        """Each of them looks as if the GIL had just been lost for as long."""
        answered = 0
        async with self.asked_by_hand(directory) as (poller, asking, serve):

            def handle(request: bytes) -> bytes:
                nonlocal answered
                answered += 1
                compute(BACK_NS + 100_000)
                while asking.try_receive() is not None:
                    pass
                if answered < CALLS_MAX:
                    asking.try_send(Kind.REQUEST, 0, answered, b"")
                return request

            asking.try_send(Kind.REQUEST, 0, CALLS_MAX, b"")
            poller.breathe()
            poller.lost(LOST_NS)
            assert serve(handle) is True
            assert answered <= 2 * ENDURED_NS / BACK_NS

    async def test_quick_requests_have_a_turn_by_time(self, directory: str) -> None:
        """As long as a turn lasts more than the usual number are handled, and no longer."""
        answered = 0
        async with self.asked_by_hand(directory) as (poller, asking, serve):

            def handle(request: bytes) -> bytes:
                nonlocal answered
                answered += 1
                asking.try_receive()
                if answered < QUICK_MAX:
                    asking.try_send(Kind.REQUEST, 0, answered, b"")
                return request

            asking.try_send(Kind.REQUEST, 0, QUICK_MAX, b"")
            for _ in range(20):
                poller.breathe()
                before, began_ns = answered, time.monotonic_ns()
                assert serve(handle) is True
                if time.monotonic_ns() - began_ns < QUICK_TURN_NS:
                    assert answered - before > STREAK_MAX
            assert answered < QUICK_MAX

    async def test_a_task_that_computes_between_requests(self, directory: str) -> None:
        """The thread beside it takes the GIL again and again, so that is never forgotten."""
        async with self.pair(directory) as (client, server):
            asking: Any = client._session.ring
            theirs: Any = server._session.ring
            poller: Any = client._session.hub.poller
            poller.remove(theirs)  # whose requests would be news
            try:
                poller.breathe()
                for _ in range(CALLS_MAX):
                    poller.lost(LOST_NS)
                    compute(BACK_NS + 100_000)
                    theirs.try_send(Kind.RESPONSE, 0, asking.next_id, b"")
                    if type(asking.request(b"")) is tuple:
                        break
                    while theirs.try_receive() is not None:
                        pass
                else:
                    pytest.fail("the loop was never due")
            finally:
                poller.add(theirs, server._session)

    async def test_what_one_call_sends_is_bounded_by_time(self, directory: str) -> None:
        """Quick ones are followed by as many again; long ones take their time, and are not."""
        options: dict[str, Any] = {"ring_bytes": 64 << 20, "spin_us": 0, "in_flight_max": 1000}
        options |= {"segment_bytes": 1 << 16, "credit_bytes": 1 << 20}
        for size, most in ((0, 3 * BATCH), (1 << 16, BATCH)):
            async with self.pair(directory, **options) as (client, _):
                ring: Any = client._session.ring
                payloads = (bytes(size),) * 3 * BATCH
                answers: list[bytes | None] = [None] * len(payloads)
                began_ns = time.monotonic_ns()
                sent, _, missing, *_ = ring.request_many(
                    payloads, answers, 0, len(payloads), 0, 0, 0
                )
                if size or time.monotonic_ns() - began_ns < BATCH_NS:
                    assert sent == missing == most

    async def test_many_slow_requests_at_once(self, directory: str) -> None:
        """Each answer comes before the wait for it is over, so that might go on for ever."""
        program = SLOW_SERVER.format(url=self.url(directory), busy_ns=BUSY_NS)
        most = 0

        async def count(ring: Any) -> None:
            nonlocal most
            seen = ring.frames_received
            while True:
                await anyio.lowlevel.checkpoint()
                most, seen = max(most, ring.frames_received - seen), ring.frames_received

        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                process.stdout.readline()
                async with (
                    await l5.connect(self.url(directory), spin_us=200) as client,
                    anyio.create_task_group() as group,
                ):
                    session: Any = client._session
                    group.start_soon(count, session.ring)
                    await client.request(b"")
                    answers = await client.request_many([b""] * MANY, window=4)
                    assert answers == [b""] * MANY
                    await anyio.sleep(0.01)
                    group.cancel_scope.cancel()
            finally:
                process.kill()
        assert 0 < most <= STREAK_MAX
