"""Where another thread computes, the loop runs more seldom, and waiting keeps the GIL."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

import l5
from l5 import native
from l5._waiter import Waiter
from l5.testing._harness import Harness

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

BATCH = 64
LOST_NS = 10_000_000
BACK_NS = 1_000_000
FORGOTTEN_NS = 50_000_000
USUAL = [True] * (BATCH - 1) + [None]  # None: the loop is due


@contextmanager
def switched_never() -> Generator[None]:
    """Let no thread ask for the GIL: it changes hands only where it is given away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def only(client: l5.Connection, server: l5.Connection) -> Generator[tuple[Any, Any]]:
    """Give the poller, and how to ask in vain beside a thread that wants the GIL.

    That returns whether the thread had it meanwhile, and how often it was given away.
    """
    session: Any = client._session
    poller = session.hub.poller
    poller.remove(server._session.ring)  # else what was asked would be news

    def ask() -> tuple[bool, int]:
        ran: list[int] = []
        gate = threading.Lock()

        def work() -> None:
            with gate:
                ran.append(1)

        gate.acquire()
        other = threading.Thread(target=work)
        other.start()
        with switched_never():
            gate.release()
            before = poller.turns
            poller.lost(LOST_NS)
            id = session.ring.request(b"x")
            result = bool(ran), poller.turns - before
        session.requests.open(id, Waiter(), sent=True)
        other.join()
        poller.breathe()
        return result

    try:
        yield poller, ask
    finally:
        poller.add(server._session.ring, server._session)


class TestPatience(Harness):
    transport = "shm"

    def url(self, directory: str) -> str:
        return f"l5+shm://{directory}/s"

    async def test_the_loop_waits_while_the_gil_is_dear(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            ring: Any = client._session.ring
            theirs: Any = server._session.ring
            poller = client._session.hub.poller
            assert poller is not None

            def send_a_batch() -> list[Any]:
                sent = [ring.send(b"") for _ in range(BATCH)]
                while theirs.try_receive() is not None:
                    pass
                ring.data_allowed = ring.data_sent + (1 << 16)
                return sent

            time.sleep(FORGOTTEN_NS / 1e9)  # what the connection's making may have lost
            poller.breathe()
            poller.lost(5_000)  # a look at the descriptors that took as long as it does
            poller.breathe()
            assert send_a_batch() == USUAL
            began, sent = 0, USUAL
            for _ in range(50):
                began = time.monotonic_ns()
                poller.lost(LOST_NS)
                poller.breathe()
                sent = send_a_batch()
                if time.monotonic_ns() - began < BACK_NS:
                    break
            assert sent == [True] * BATCH
            assert time.monotonic_ns() - began < BACK_NS, "this machine never let it be in time"
            time.sleep(FORGOTTEN_NS / 1e9)
            poller.breathe()
            assert send_a_batch() == USUAL

    async def test_the_loop_has_its_turn_soon_after_the_gil_is_back(self, directory: str) -> None:
        async with self.pair(directory) as (client, _):
            poller = client._session.hub.poller
            assert poller is not None
            poller.lost(LOST_NS)
            first = poller.patient_until_ns
            assert first <= time.monotonic_ns() + BACK_NS
            poller.breathe()  # the next turn is after the next loss, or when there is none
            assert first < poller.patient_until_ns <= time.monotonic_ns() + 2 * LOST_NS

    async def test_an_hour_is_not_waited_for(self, directory: str) -> None:
        async with self.pair(directory) as (client, _):
            poller = client._session.hub.poller
            assert poller is not None
            poller.lost(3_600_000_000_000)
            poller.breathe()
            assert poller.patient_until_ns <= time.monotonic_ns() + 2 * LOST_NS

    async def test_waits_in_vain_give_turns_more_and_more_seldom(self, directory: str) -> None:
        async with self.pair(directory, in_flight_max=100) as (client, server):
            with only(client, server) as (_, ask):
                given = [ask()[1] for _ in range(60)]
            turns = [at for at, count in enumerate(given) if count]
            gaps = [later - sooner - 1 for sooner, later in pairwise(turns)]
            assert set(given) == {0, 1}
            assert gaps[:6] == [1, 2, 4, 8, 16, 16]

    async def test_a_wait_keeps_the_gil_and_a_turn_gives_it_away(self, directory: str) -> None:
        async with self.pair(directory, in_flight_max=500) as (client, server):
            with only(client, server) as (_, ask):
                given = kept = 0
                for _ in range(400):
                    had_a_turn, turns = ask()
                    assert turns or not had_a_turn
                    given += had_a_turn
                    kept += not turns
                    if given and kept:
                        break
            assert given and kept
