"""A client and its server in one event loop: a short way, and no doorbell rings."""

from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import l5
import l5.blocking
from l5 import native
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
        yields = poller.yields
        for number in range(100):
            assert await client.request(b"%d" % number) == b"%d" % number
        assert poller.yields > yields, "never waited for a peer on its own CPU"
        assert poller.moves == 0


@pytest.mark.skipif(not native.available, reason=native.reason)
@pytest.mark.parametrize("spun", [True, False])
async def test_who_has_spun_sleeps_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spun: bool
) -> None:
    """A request that has just looked for its answer for a while does not begin anew."""
    looked, before_sleep = list[Waiter](), list[Waiter]()
    look = Hub._poll_rings

    def count(hub: Hub, waiter: Waiter) -> bool:
        looked.append(waiter)
        return look(hub, waiter)

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
