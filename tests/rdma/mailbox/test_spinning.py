"""Completion queues are spun for, as rings are, before anybody asks to be woken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import l5
from l5 import _wait
from l5._unwoken import Unwoken
from l5._wait import Hub, current_hub
from tests.rdma._simulated import simulate

TIMES = 60
URL = "l5+rdma://127.0.0.1:0"


def echo(request: bytes) -> bytes:
    return request


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(_wait, "may_spin", lambda: True)


@pytest.mark.anyio
@pytest.mark.parametrize("spin_us", [0, 10_000])
async def test_a_read_is_spun_for(monkeypatch: pytest.MonkeyPatch, spin_us: int) -> None:
    parks: list[object] = []
    park = Hub.park

    async def counted(self: Hub, waiter: Any, *, spun: bool = False) -> None:
        parks.append(waiter)
        await park(self, waiter, spun=spun)

    with l5.Region.create(4096) as region:
        async with l5.serve(echo, URL, spin_us=spin_us) as server:
            server.export("table", region)
            async with await l5.connect(server.urls[0], spin_us=spin_us) as client:
                remote = await client.open_region("table")
                end = remote._access.end
                poll, looks = end.poll, 0

                def late_poll() -> None:
                    nonlocal looks
                    looks += 1
                    if looks > 2:  # the next one is the last before it sleeps
                        poll()

                with monkeypatch.context() as patch:
                    patch.setattr(Hub, "park", counted)
                    patch.setattr(end, "poll", late_poll)
                    for _ in range(TIMES):
                        looks = 0
                        assert await remote.read(0, 8) == bytes(8)
    if spin_us:
        assert len(parks) <= 3
    else:
        assert len(parks) > TIMES // 3


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "looks"), [("flags", False), ("flags+imm", False), ("imm", True)])
async def test_what_no_memory_tells_of_is_spun_for(mode: str, looks: bool) -> None:
    async with l5.serve(echo, URL, rdma_mode=mode) as server:
        async with await l5.connect(server.urls[0]) as client:
            for _ in range(TIMES):
                assert await client.request(b"hello") == b"hello"
            assert client.upgrade_report.mode == mode
            assert bool(current_hub().looked_ns) == looks


def test_the_budget_of_rings_holds_and_what_it_took_is_counted() -> None:
    poller: Any = SimpleNamespace(budget_ns=200_000, yield_only=False)
    looks: list[bool] = []

    def never() -> bool:
        looks.append(False)
        return False

    hub = Unwoken()
    hub.poller = poller
    assert not hub.spin_on(never)
    assert len(looks) > 1 and hub.looked_ns >= poller.budget_ns
    poller.budget_ns = 10**10
    answers = iter([False, False, True])
    assert hub.spin_on(lambda: next(answers))
    poller.yield_only = True
    looks.clear()
    assert not hub.spin_on(never) and len(looks) == 1


def test_who_has_news_at_last_is_told_so() -> None:
    answers = iter([False, False, True, True])
    told: list[str] = []

    class Endpoint:
        channel = SimpleNamespace(poll=lambda: next(answers))

        def on_ready(self) -> None:
            told.append("ready")

    endpoint: Any = Endpoint()
    hub = Unwoken()
    hub.poller = SimpleNamespace(budget_ns=10**10, yield_only=False)  # type: ignore[assignment]
    assert not hub.ask_patiently()
    hub.polled[endpoint] = None
    assert hub.ask_patiently() and told == ["ready"]
