"""A client and its server in one event loop: a short way, and no doorbell rings."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
import l5.blocking
from l5 import native
from l5._statistics import loop_statistics_of
from l5._wait import Hub, Waiter, current_hub

pytestmark = [pytest.mark.anyio, pytest.mark.shm]
REQUESTS = 500


async def echo(request: bytes) -> bytes:
    return request


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_a_request_goes_the_short_way(tmp_path: Path) -> None:
    async with (
        l5.serve(echo, f"l5+unix://{tmp_path}/s") as server,
        await l5.connect(server.urls[0], transports="shm") as client,
    ):
        await client.request(b"warm")
        (session,) = server._sessions  # pyright: ignore[reportPrivateUsage]
        ring = session.ring
        assert ring is not None
        before, rung = client.statistics(), ring.bells_rung
        for number in range(REQUESTS):
            assert await client.request(b"%d" % number) == b"%d" % number
        after = client.statistics()
        assert after.bells_rung is not None and before.bells_rung is not None
        assert after.calls is not None and before.calls is not None
        assert after.bells_rung - before.bells_rung < REQUESTS / 20
        assert ring.bells_rung - rung < REQUESTS / 20
        assert after.calls - before.calls < 4 * REQUESTS


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_more_clients_than_are_scanned(tmp_path: Path) -> None:
    """Rings that rest are scanned again when something came in that nobody rang for."""
    answers: list[bytes] = []

    async def ask(client: l5.Connection, number: int) -> None:
        for _ in range(3):
            await anyio.sleep(0.001 * (number % 7))
            answers.append(await client.request(b"%d" % number))

    async with l5.serve(echo, f"l5+unix://{tmp_path}/s") as server:
        clients = [
            await l5.connect(server.urls[0], transports="shm", ring="64KiB") for _ in range(20)
        ]
        for _ in range(1000):
            await clients[0].request(b"the others fall silent")
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number, client in enumerate(clients):
                    group.start_soon(ask, client, number)
        for client in clients:
            await client.aclose()
    assert sorted(answers) == sorted(b"%d" % number for number in range(20) for _ in range(3))


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_nobody_leaves_a_cpu_to_himself(tmp_path: Path) -> None:
    """Where others compute, each move to another CPU waits until that one is free."""

    poller = current_hub().ring_poller(0)

    async def ask_on(request: bytes) -> bytes:
        poller.lost(1_000_000)  # as if another thread computed: it is told by the time alone
        return await behind.request(request)

    async with (
        l5.serve(echo, f"l5+shm://{tmp_path}/t"),
        await l5.connect(f"l5+shm://{tmp_path}/t") as behind,
        l5.serve(ask_on, f"l5+shm://{tmp_path}/s"),
        await l5.connect(f"l5+shm://{tmp_path}/s") as client,
    ):
        assert poller.movable
        spins = poller.spins
        for number in range(100):
            assert await client.request(b"%d" % number) == b"%d" % number
        assert poller.spins == spins, "waited for a task of this loop"
        assert poller.moves == 0


@pytest.mark.skipif(not native.available, reason=native.reason)
@pytest.mark.parametrize("spun", [True, False])
async def test_who_has_spun_sleeps_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spun: bool
) -> None:
    """A request that has just looked for its answer for a while does not begin anew."""
    looked, before_sleep = list[Waiter](), list[Waiter]()
    look = Hub._poll_rings

    def count(hub: Hub, waiter: Waiter, poller: Any) -> bool:
        looked.append(waiter)
        return look(hub, waiter, poller)

    url = f"l5+unix://{tmp_path}/s"
    with l5.blocking.serve(bytes.upper, url):  # in a thread: nobody else waits here
        async with await l5.connect(url, transports="shm", heartbeat_ms=0) as client:
            await client.request(b"warm")
            hub, waiter = current_hub(), Waiter()
            monkeypatch.setattr(Hub, "_poll_rings", count)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(hub.park, waiter, spun=spun))
                while waiter.asleep_in is None:
                    await anyio.lowlevel.checkpoint()
                before_sleep = list(looked)
                waiter.ready = True
                hub.interrupt()
            assert (before_sleep == []) is spun


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_nobody_waits_for_a_task_of_the_same_loop(tmp_path: Path) -> None:
    """Neither end spins, yields or sleeps: the other one runs as soon as the loop does."""
    async with (
        l5.serve(echo, f"l5+unix://{tmp_path}/s") as server,
        await l5.connect(server.urls[0], transports="shm", heartbeat_ms=0) as client,
    ):
        for _ in range(10):
            await client.request(b"warm")
        hub = client._session.hub  # pyright: ignore[reportPrivateUsage]
        assert hub.poller is not None and hub.poller.inner == 1
        before = loop_statistics_of(hub)
        for number in range(REQUESTS):
            assert await client.request(b"%d" % number) == b"%d" % number
        after = loop_statistics_of(hub)
        assert after.spins == before.spins
        assert after.yields == before.yields
        assert after.sleeps - before.sleeps < REQUESTS / 20


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_a_handler_that_suspends_is_not_spun_for(tmp_path: Path) -> None:
    async def slow(request: bytes) -> bytes:
        await anyio.sleep(0.002)
        return request

    async with (
        l5.serve(slow, f"l5+unix://{tmp_path}/s") as server,
        await l5.connect(server.urls[0], transports="shm") as client,
    ):
        hub = client._session.hub  # pyright: ignore[reportPrivateUsage]
        await client.request(b"warm")
        before = loop_statistics_of(hub)
        for number in range(20):
            assert await client.request(b"%d" % number) == b"%d" % number
        after = loop_statistics_of(hub)
        assert (after.spins, after.yields) == (before.spins, before.yields)


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_ends_that_are_here_are_counted(tmp_path: Path) -> None:
    async with l5.serve(echo, f"l5+unix://{tmp_path}/s") as server:
        first = await l5.connect(server.urls[0], transports="shm")
        second = await l5.connect(server.urls[0], transports="shm")
        assert await first.request(b"1") == b"1"
        assert await second.request(b"2") == b"2"
        poller = first._session.hub.poller  # pyright: ignore[reportPrivateUsage]
        assert poller is not None and poller.inner == 2
        await first.aclose()
        assert poller.inner == 1
        assert await second.request(b"3") == b"3"
        await second.aclose()
        assert poller.inner == 0


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_answers_of_many_tasks_and_of_all_kinds(tmp_path: Path) -> None:
    """What the short way of answers leaves to the usual one: long, streamed, failed, given up."""

    async def handler(request: bytes) -> bytes:
        if request == b"fail":
            raise ValueError("no")
        if request == b"late":
            await anyio.sleep(0.01)
        return request

    async with (
        l5.serve(handler, f"l5+unix://{tmp_path}/s") as server,
        await l5.connect(server.urls[0], transports="shm", ring="64KiB") as client,
    ):

        async def ask(number: int) -> None:
            for _ in range(20):
                assert await client.request(b"%d" % number) == b"%d" % number
            assert await client.request(bytes(100_000 + number)) == bytes(100_000 + number)
            with pytest.raises(l5.RequestFailed):
                await client.request(b"fail")
            async with client.request_stream(b"%d" % number) as pieces:
                assert b"".join([piece async for piece in pieces]) == b"%d" % number
            with anyio.move_on_after(0.001):
                await client.request(b"late")

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(ask, number)
        assert await client.request(b"and after") == b"and after"
        with anyio.fail_after(60):
            while client.statistics().in_flight:
                await anyio.sleep(0.01)
        assert client.statistics().late_answers <= 8


@pytest.mark.skipif(not native.available, reason=native.reason)
@pytest.mark.parametrize("here", [True, False])
async def test_clients_of_one_server_in_one_loop_all_go_on(tmp_path: Path, here: bool) -> None:
    """Each asks until all have had many answers: who starved would have none, and all go on."""
    url = f"l5+unix://{tmp_path}/s"
    answers = {"one": 0, "the other": 0, "the other's second": 0}

    async def ask(client: l5.Connection, name: str) -> None:
        while min(answers.values()) < 100:
            await client.request(b"x")
            answers[name] += 1

    async with AsyncExitStack() as stack:
        if here:
            await stack.enter_async_context(l5.serve(echo, url))
        else:
            stack.enter_context(l5.blocking.serve(bytes.upper, url))
        one, other = [
            await stack.enter_async_context(await l5.connect(url, transports="shm"))
            for _ in range(2)
        ]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for client, name in zip((one, other, other), answers, strict=True):
                    group.start_soon(ask, client, name)
