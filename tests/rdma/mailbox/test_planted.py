"""What a device refuses in the middle of things ends that connection, and says why; no other one.

The event loop is shared: whoever happens to look, to arm or to settle for a connection is not the
one to hear of its failure.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

import l5
from l5.rdma import verbs
from l5.rdma._room import mailroom
from tests.rdma._simulated import simulate

from ._rig import rig_on

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[pytest.param(("asyncio", {}), id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


def refuse(*_: object, **__: object) -> Any:
    raise verbs.VerbsError("post", 0, "Cannot allocate memory (planted)")


@attrs.define(eq=False)
class Served:
    """A server, the victim of what is planted, and another client."""

    server: Any
    client: Any
    other: Any
    at_server: Any
    """The victim's channel at the server."""

    @property
    def at_client(self) -> Any:
        return self.client._session.channel

    async def other_is_served(self) -> None:
        for number in range(5):
            assert await self.other.request(b"%d" % number) == b"%d" % number


async def answer(request: bytes) -> bytes:
    if request == b"never":
        await anyio.sleep_forever()
    return request


async def ask_for_ever(connection: Any) -> None:
    """Ask what is never answered: the server owes word that the row has been taken."""
    with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
        await connection.request(b"never")


@asynccontextmanager
async def served(mode: str) -> AsyncGenerator[Served]:
    async with l5.serve(answer, "l5+rdma://127.0.0.1:0") as server:
        url = server.urls[0]
        async with (
            await l5.connect(url, rdma_mode=mode) as other,
            await l5.connect(url, rdma_mode=mode) as client,
        ):
            assert await client.request(b"first") == b"first"
            assert await other.request(b"first") == b"first"
            channels = list(mailroom()._channels.values())
            yield Served(server, client, other, channels[-1])


def plant_in_requests(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    """From now on the queue pair of one channel takes no request."""
    monkeypatch.setattr(channel._end.pair, "post", refuse)


def plant_in_notices(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    """Only what is sent for its own sake fails: answers would be an application's business."""

    def post(frame: object, *rest: object) -> bool:
        return refuse() if frame is None else before(frame, *rest)

    before: Callable[..., bool] = channel._post
    monkeypatch.setattr(channel, "_post", post)


def plant_in_arming(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    monkeypatch.setattr(channel._end.queue, "arm", refuse)


def plant_in_events(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    monkeypatch.setattr(channel._end.queue, "drain_events", refuse)


def plant_in_polling(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    monkeypatch.setattr(channel._end.queue, "poll", refuse)


def plant_in_receives(monkeypatch: pytest.MonkeyPatch, channel: Any) -> None:
    monkeypatch.setattr(channel._end._receive, "post", refuse)


PLACES = {
    "requests": plant_in_requests,
    "notices": plant_in_notices,
    "arming": plant_in_arming,
    "events": plant_in_events,
    "polling": plant_in_polling,
    "receives": plant_in_receives,
}


CASES = [
    (place, mode)
    for place in PLACES
    for mode in ("flags", "flags+imm", "imm")
    if (place, mode) not in (("events", "flags"), ("receives", "flags"))  # it has none
]


async def until_broken(session: Any, stir: Callable[[], None]) -> None:
    """Let things happen until it has ended, by what was planted and typed as it should be."""
    errors: list[Exception] = []
    session.on_close.append(lambda: errors.append(session.error))
    with anyio.fail_after(60):
        while not errors:
            stir()
            await anyio.sleep(0.002)
    assert type(errors[0]) is anyio.BrokenResourceError, errors
    assert "(planted)" in str(errors[0])


@pytest.mark.parametrize(("place", "mode"), CASES)
async def test_at_the_server(place: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(mode) as all, anyio.create_task_group() as group:
        session = all.at_server._session
        PLACES[place](monkeypatch, all.at_server)
        await until_broken(session, lambda: group.start_soon(ask_for_ever, all.client))
        await all.other_is_served()
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("place", "mode"), CASES)
async def test_at_the_client(place: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(mode) as all, anyio.create_task_group() as group:
        channel = all.at_client
        if place == "notices":  # what a client says for its own sake: how far it has read
            monkeypatch.setattr(type(channel._reader), "due", True)
            monkeypatch.setattr(channel, "_post_row", refuse)
        else:
            PLACES[place](monkeypatch, channel)
        await until_broken(all.client._session, lambda: group.start_soon(ask_for_ever, all.client))
        with pytest.raises(anyio.BrokenResourceError, match="planted"):
            await all.client.request(b"again")
        if place != "notices":
            await all.other_is_served()
        group.cancel_scope.cancel()


async def test_a_longer_row_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("flags+imm") as all:
        session = all.at_server._session
        errors: list[Exception] = []
        session.on_close.append(lambda: errors.append(session.error))
        monkeypatch.setattr(all.at_server._end.domain, "register", refuse)
        with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(60):
            await all.client.request(bytes(20_000))
        assert "no row of" in str(errors[0]) and "(planted)" in str(errors[0])
        await all.other_is_served()


@pytest.mark.parametrize("error", [verbs.VerbsError("register memory", 12), OSError(12, "none")])
async def test_memory_to_send_from_that_cannot_be_had(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(_: int) -> None:
        raise error

    async with served("flags+imm") as all:
        assert await all.client.request(bytes(20_000)) == bytes(20_000)
        monkeypatch.setattr(all.at_client._end, "_stage", stage)
        with pytest.raises(anyio.BrokenResourceError, match=str(error.args[-1])):
            await all.client.request(bytes(60_000))
        await all.other_is_served()


async def test_positions_that_cannot_be_are_found_where_nobody_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the server READs is a lie; whoever polls just then is not the one to hear of it."""
    async with served("flags+imm") as all:
        session = all.at_server._session
        errors: list[Exception] = []
        session.on_close.append(lambda: errors.append(session.error))
        monkeypatch.setattr(all.at_server._end, "words", lambda: (1 << 40, 0))
        all.at_server._ask(short=True)
        all.at_server._end.poll()
        with pytest.raises(anyio.BrokenResourceError, match="has read to"), anyio.fail_after(60):
            await all.client.request(b"again")  # it is told which rule it broke
        assert type(errors[0]) is l5.RemoteProtocolError
        assert "has read to" in str(errors[0])
        await all.other_is_served()


@pytest.mark.parametrize("mode", ["flags", "flags+imm", "imm"])
def test_a_device_that_answers_no_reads_is_asked_for_none(mode: str) -> None:
    """The rows say how far the client has read: several laps of its ring, and no READ."""
    with rig_on() as rig:
        port = rig.fabric.ports["sim0"]
        port.limits = attrs.evolve(port.limits, rd_atomic=0)
        pair = rig.pair(mode)
        assert (pair.server_end.rd_atomic, pair.client_end.rd_atomic) == (0, 0)
        payload = bytes(range(250)) * 40
        for number in range(60):
            while not pair.answer(payload, number):
                assert (frame := pair.client.try_receive()) is not None
                assert frame.payload == payload
                while not pair.client.arm():
                    assert pair.client.try_receive() is not None
                assert pair.server.try_receive() is None  # what the row says is all that it says
        assert pair.server.counters.reads == 0
