"""Heartbeats: who hears them, how often, and what they say."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

import l5
from l5 import native
from l5._heartbeat import PAYLOAD, Beats, Heard
from tests.native import _handlers

pytestmark = pytest.mark.anyio

needs_c = pytest.mark.skipif(not native.available, reason=native.reason)
URLS = [
    pytest.param("l5+shm://{}/s", marks=needs_c, id="shm"),
    pytest.param("l5+unix://{}/s?transports=unix", id="unix"),
    pytest.param("l5+tcp://127.0.0.1:0", id="tcp"),
    pytest.param("l5+inproc://heartbeats", id="inproc"),
]
MINUTE_MS = 60_000


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param.format(tmp_path)


@asynccontextmanager
async def pair(
    url: str, handler: Any = bytes.upper, heartbeat_ms: int | None = None, **options: Any
) -> AsyncGenerator[l5.Connection]:
    """Connect to a server with these options; `heartbeat_ms` is the client's."""
    async with l5.serve(handler, url, **options) as server:
        async with await l5.connect(server.urls[0], heartbeat_ms=heartbeat_ms) as connection:
            yield connection


async def ask_until(connection: l5.Connection, condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            assert await connection.request(b"x") == b"X"


async def test_who_asks_hears_one_after_the_other(url: str) -> None:
    async with pair(url) as connection:
        heartbeat = connection.heartbeat
        assert heartbeat.interval_s == 0.01
        begun = time.monotonic()
        seen = {0}

        def enough() -> bool:
            assert heartbeat.sequence >= max(seen)
            seen.add(heartbeat.sequence)
            return len(seen) > 4

        await ask_until(connection, enough)
        assert begun <= heartbeat.heard_at <= time.monotonic()
        assert 0.0 <= heartbeat.busy_share <= 1.0


@pytest.mark.parametrize(("wants", "tells"), [(0, 10), (10, 0), (0, 0)])
async def test_none_to_who_wants_none_and_from_who_tells_nothing(
    url: str, wants: int, tells: int
) -> None:
    async with l5.serve(bytes.upper, url, heartbeat_ms=tells) as server:
        async with (
            await l5.connect(server.urls[0], heartbeat_ms=wants) as connection,
            await l5.connect(server.urls[0], heartbeat_ms=tells or 10) as other,
        ):
            assert connection.heartbeat.interval_s == 0.0
            told = other.heartbeat if tells else None
            await ask_until(other, lambda: told is None or told.sequence > 3)
            await ask_until(connection, lambda: connection.statistics().requests_sent > 20)
            nothing = connection.heartbeat
            assert (nothing.sequence, nothing.busy_share, nothing.heard_at) == (0, 0.0, 0.0)
            assert connection.statistics().frames_received == 21


@pytest.mark.parametrize(
    ("wants", "tells", "agreed_s"), [(10, 25, 0.025), (25, 10, 0.025), (MINUTE_MS, 10, 60.0)]
)
async def test_the_longer_interval_holds(url: str, wants: int, tells: int, agreed_s: float) -> None:
    async with pair(url, heartbeat_ms=wants) as connection:
        assert connection.heartbeat.interval_s == max(wants, 10) / 1000
    async with l5.serve(bytes.upper, url, heartbeat_ms=tells) as server:
        async with (
            await l5.connect(server.urls[0], heartbeat_ms=wants) as connection,
            await l5.connect(server.urls[0]) as other,
        ):
            assert connection.heartbeat.interval_s == agreed_s
            await ask_until(connection, lambda: connection.heartbeat.sequence > 0)
            first = connection.heartbeat.sequence
            await ask_until(other, lambda: other.heartbeat.sequence > first + 3)
            assert await connection.request(b"x") == b"X"
            if wants == MINUTE_MS:
                assert connection.heartbeat.sequence == first


async def test_the_share_tells_work_from_waiting(url: str) -> None:
    def work(request: bytes) -> bytes:
        if request == b"work":
            time.sleep(0.02)
        return request

    async def until_told(what: bytes, pause_s: float, busy: bool) -> None:
        """A busy machine may give single shares that are neither: one that is has to come."""
        while True:
            before = connection.heartbeat.sequence
            await connection.request(what)
            await anyio.sleep(pause_s)
            told = connection.heartbeat
            if told.sequence != before and (told.busy_share > 0.5) == busy:
                return

    async with pair(url, work) as connection:
        with anyio.fail_after(60):
            await connection.request(b"")
            await until_told(b"work", 0.0, True)
            await connection.request(b"")
            await until_told(b"rest", 0.03, False)


async def test_sockets_tell_only_those_who_said_something(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s?transports=unix"
    async with l5.serve(bytes.upper, url) as server:
        async with await l5.connect(server.urls[0]) as silent, await l5.connect(url) as other:
            await ask_until(other, lambda: other.heartbeat.sequence > 5)
            assert await silent.request(b"once") == b"ONCE"
            await ask_until(silent, lambda: silent.statistics().requests_sent == 2)
            frames = silent.statistics().frames_received
            # What was said to it before its requests would be here by now: nothing.  Each of the
            # two may have been followed by one.
            assert frames - 2 <= 2


@needs_c
async def test_shared_memory_tells_who_is_silent_too(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    async with pair(url) as busy, await l5.connect(url) as silent:
        await ask_until(busy, lambda: silent.heartbeat.sequence > 5)
        assert silent.statistics().frames_received == 0


async def test_after_the_end_the_last_words_stay(url: str) -> None:
    async with pair(url) as connection:
        heartbeat = connection.heartbeat
        await ask_until(connection, lambda: heartbeat.sequence > 1)
        last = heartbeat.sequence
    assert heartbeat.sequence >= last
    assert 0.0 <= heartbeat.busy_share <= 1.0


async def test_nobody_is_told_by_a_server_that_has_ended(url: str) -> None:
    from l5._wait import current_hub

    async with pair(url) as connection:
        await ask_until(connection, lambda: connection.heartbeat.sequence > 0)
        beats = current_hub().beats
        assert beats is not None and len(beats._clients) == 1  # pyright: ignore[reportPrivateUsage]
    assert not beats._clients  # pyright: ignore[reportPrivateUsage]


def test_a_lie_is_cut_to_what_can_be() -> None:
    heard = Heard(0.01)
    heard.hear(PAYLOAD.pack(2**64 - 1, 4_000_000_000))
    assert (heard.sequence, heard.busy_share) == (2**64 - 1, 1.0)


# ---- native services -------------------------------------------------------------------------


@pytest.fixture(params=["poll", "event", "adaptive"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@needs_c
async def test_workers_tell_all_who_want_to_know(tmp_path: Path, mode: Any) -> None:
    service = l5.NativeService(_handlers.address(), mode=mode, keep_alive=_handlers.library())
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(service, url):
        async with (
            await l5.connect(url) as busy,
            await l5.connect(url) as silent,
            await l5.connect(url, heartbeat_ms=MINUTE_MS) as seldom,
            await l5.connect(url, heartbeat_ms=0) as deaf,
        ):
            with anyio.fail_after(60):
                while busy.heartbeat.sequence < 6 + seldom.heartbeat.sequence:
                    assert await busy.request(b"echo") == b"echo"
            assert silent.heartbeat.sequence >= 5
            first = seldom.heartbeat.sequence  # told once, and not again before a minute
            assert 0 < first < busy.heartbeat.sequence
            assert deaf.heartbeat.sequence == 0
            assert 0.0 <= busy.heartbeat.busy_share <= 1.0
            assert 0.0 < busy.heartbeat.heard_at <= time.monotonic()


@needs_c
async def test_a_workers_share_is_that_of_the_last_interval(tmp_path: Path) -> None:
    """Not the average of the statistics: a client averages as it likes."""
    service = l5.NativeService(_handlers.address(), mode="poll", keep_alive=_handlers.library())
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(service, url), await l5.connect(url) as connection:
        heartbeat = connection.heartbeat
        with anyio.fail_after(60):
            while heartbeat.busy_share == 0.0:
                await connection.request(b"echo")
            while heartbeat.busy_share > 0.0:  # a polling worker is awake without us
                await anyio.sleep(0.001)
            assert 0.0 <= service.statistics().busy_share < 1.0


# ---- a quota -----------------------------------------------------------------------------------


@pytest.fixture
def tiny_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make this process believe in a quota that whatever it does uses up."""
    from l5 import _quota

    monkeypatch.setattr(_quota, "smallest_quota", lambda: (1e-5, tmp_path))


@needs_c
@pytest.mark.usefixtures("tiny_quota")
async def test_a_worker_that_has_used_up_its_quota_is_full(tmp_path: Path) -> None:
    service = l5.NativeService(_handlers.address(), mode="event", keep_alive=_handlers.library())
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(service, url), await l5.connect(url) as connection:
        with anyio.fail_after(60):
            while connection.heartbeat.busy_share < 1.0:
                assert await connection.request(b"echo") == b"echo"
                await anyio.sleep(0.005)  # hardly any work


@pytest.mark.usefixtures("tiny_quota")
async def test_a_loop_that_has_used_up_its_quota_is_full(url: str) -> None:
    async with pair(url) as connection:
        with anyio.fail_after(60):
            while connection.heartbeat.busy_share < 1.0:
                assert await connection.request(b"x") == b"X"
                await anyio.sleep(0.005)


async def test_what_a_loop_has_spun_is_no_use_of_its_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a quota of one processor it spins, and is not full for that."""
    from l5 import _heartbeat, _quota

    used_ns = 0
    monkeypatch.setattr(_quota, "smallest_quota", lambda: (1.0, tmp_path))
    monkeypatch.setattr(_heartbeat, "process_time_ns", lambda: used_ns)
    poller = SimpleNamespace(spun_total_ns=0, yielded_total_ns=0)
    hub = SimpleNamespace(poller=poller, looked_ns=0, slept_ns=0)
    quota = Beats(cast("Any", hub))._quota
    an_hour = 3600 * 10**9
    for worked_ns, spun_ns, full in ((0, an_hour, 0.0), (an_hour, 0, 1.0), (0, an_hour, 0.0)):
        used_ns += worked_ns + spun_ns
        poller.spun_total_ns += spun_ns
        await anyio.sleep(0.11)  # a window
        assert quota.share() == full


async def test_what_waits_for_an_answer_is_the_last_word() -> None:
    """Who asks nothing for a while is told how busy we are then, not how busy we were before."""
    carried: list[int] = []

    def carry(kind: int, flags: int, id: int, payload: bytes) -> bool:
        carried.append(PAYLOAD.unpack(payload)[0])
        return True

    class Silent:
        state, leaving, ring, lane, frames_received = "OPEN", None, None, None, 1
        channel = SimpleNamespace(carry=carry)
        sends = SimpleNamespace(heartbeat_ms=1)
        on_close: list[Any] = []

    session, hub = Silent(), SimpleNamespace(poller=None, looked_ns=0, slept_ns=0)
    beats = Beats(cast("Any", hub))
    beats.add(cast("Any", session))
    for _ in range(100):
        await anyio.sleep(0.001)
        beats.look()
    assert len(carried) > 2
    assert carried[-1] == beats.sequence
