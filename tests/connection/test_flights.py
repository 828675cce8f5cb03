"""Many requests while the event loop has its turn: they stay C's, and belong to whoever asks."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import _many, native
from l5._many import Flight
from l5._requests import RequestTable
from l5._wait import Waiter

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shm,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

BATCH = [b"%d" % number for number in range(4096)]
WINDOW = 64
SERVER = """
import l5.blocking
with l5.blocking.serve(lambda request: request, "{url}") as server:
    print("up", flush=True)
    server.serve_forever()
"""

Turn = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def connected(folder: Path) -> AsyncGenerator[l5.Connection]:
    """Connect to a server in a process of its own: in one loop nobody answers while C waits."""
    url = f"l5+unix://{folder}/s"
    command = [sys.executable, "-c", SERVER.format(url=url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            await anyio.to_thread.run_sync(server.stdout.readline)
            async with await l5.connect(url, transports="shm") as connection:
                yield connection
        finally:
            server.kill()


def in_turns(monkeypatch: pytest.MonkeyPatch, turn: Turn) -> None:
    """Have `turn` called whenever the loop has its turn and something is under way."""
    pace = _many._transmit.pace  # pyright: ignore[reportPrivateUsage]

    async def hooked(session: Any) -> None:
        if session.requests.flights:
            await turn(session)
        await pace(session)

    monkeypatch.setattr(_many._transmit, "pace", hooked)  # pyright: ignore[reportPrivateUsage]


async def test_the_peer_has_something_to_do_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights, under_way = list[Flight](), list[int]()

    async def note(session: Any) -> None:
        flights.extend(session.requests.flights)
        under_way.append(session.window.in_flight)
        assert not len(session.requests)

    in_turns(monkeypatch, note)
    async with connected(tmp_path) as connection:
        with anyio.fail_after(60):  # of some requests C loses patience, on a busy machine
            while not any(flight.requests == deque() for flight in flights):
                assert await connection.request_many(BATCH, window=WINDOW) == BATCH
        assert all(0 < count <= WINDOW for count in under_way)
        assert connection.statistics().in_flight == 0


async def test_who_receives_in_that_turn_gets_the_answers_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = 0

    async def receive(session: Any) -> None:
        nonlocal received
        (flight,) = session.requests.flights
        with anyio.fail_after(60):
            while flight.requests is None:
                session.on_ready(1)
                await anyio.lowlevel.checkpoint()
        received += 1
        assert not session.requests.flights

    in_turns(monkeypatch, receive)
    async with connected(tmp_path) as connection:
        with anyio.fail_after(60):
            while received < 3:
                assert await connection.request_many(BATCH, window=WINDOW) == BATCH
        assert connection.statistics().in_flight == 0


async def test_who_asks_in_that_turn_has_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async with connected(tmp_path) as connection:

        async def ask(session: Any) -> None:
            nonlocal asked
            asked += 1
            assert await connection.request(b"between") == b"between"

        in_turns(monkeypatch, ask)
        with anyio.fail_after(60):
            while asked < 3:
                assert await connection.request_many(BATCH, window=WINDOW) == BATCH
        assert connection.statistics().in_flight == 0


async def test_cancelled_in_that_turn_the_answers_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = 0
    scope = anyio.CancelScope()

    async def cancel(session: Any) -> None:
        nonlocal abandoned
        abandoned = session.window.in_flight
        scope.cancel()
        await anyio.sleep(60)

    in_turns(monkeypatch, cancel)
    async with connected(tmp_path) as connection:
        with anyio.fail_after(60):
            while not abandoned:
                with scope:
                    await connection.request_many(BATCH, window=WINDOW)
            while connection.statistics().in_flight:
                assert await connection.request(b"after") == b"after"
        assert connection.statistics().late_answers == abandoned


async def test_closed_in_that_turn_the_oldest_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(tmp_path) as connection:

        async def close(session: Any) -> None:
            await connection.aclose()

        in_turns(monkeypatch, close)
        with anyio.fail_after(60), pytest.raises(anyio.ClosedResourceError) as caught:
            while True:
                await connection.request_many(BATCH, window=WINDOW)
        (note,) = caught.value.__notes__
        assert note.startswith("request ")


def test_what_is_not_under_way_is_not_answered() -> None:
    table = RequestTable()
    answers: list[bytes | None] = [None, b"there", None, None]
    flight = Flight(table, answers, 0)
    flight.sent, flight.first_id, flight.missing = 3, 7, 2
    table.flights.append(flight)
    assert table.get(9).id == 9
    assert not table.flights
    assert flight.requests is not None
    assert [(place, request.id) for place, request in flight.requests] == [(0, 7), (2, 9)]
    for id in (6, 8, 10):
        table.flights.append(Flight(table, answers, 0))
        with pytest.raises(l5.RemoteProtocolError, match=f"request {id}, which has no answer"):
            table.get(id)


def test_the_end_is_the_end_of_all() -> None:
    table = RequestTable()
    flight = Flight(table, [None, None], 0)
    flight.sent, flight.first_id, flight.missing = 2, 1, 2
    table.flights.append(flight)
    table.open(3, Waiter())
    table.fail_all(anyio.BrokenResourceError())
    assert flight.requests is not None
    assert len(flight.requests) == 2
    for _, request in flight.requests:
        with pytest.raises(anyio.BrokenResourceError):
            request.result()
    assert not len(table)
