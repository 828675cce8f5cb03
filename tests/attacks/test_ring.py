"""Rings into which a hostile process writes; see docs/security-shared-memory.md for the table."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from tests.attacks import _lies
from tests.attacks._support import (
    Ticker,
    attack,
    attacker,
    bystander,
    held,
    resident_bytes,
    ticking,
    until,
    victim,
)
from tests.native import _handlers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]
MIB = 1 << 20


@asynccontextmanager
async def native_victim(url: str, **options: Any) -> AsyncIterator[tuple[l5.Server, Ticker]]:
    service = l5.NativeService(_handlers.address(), keep_alive=_handlers.library())
    async with victim(url, service, **options) as (server, ticker):
        yield server, ticker
    assert service.statistics().stored_bytes == 0


VICTIMS: dict[str, Any] = {"python": victim, "native": native_victim}


@pytest.fixture(params=list(VICTIMS))
def serving(request: pytest.FixtureRequest) -> Any:
    return VICTIMS[request.param]


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server said of those who broke the protocol, in their order."""
    said = [record.getMessage() for record in caplog.records]
    return [text for text in said if "broke the protocol" in text]


async def test_lies_to_a_server(
    tmp_path: Path, serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "l5")
    lies = _lies.LIES | _lies.POSITIONS | _lies.TO_SERVERS
    url = f"l5+unix://{tmp_path}/s"
    async with (
        serving(url, max_message="4MiB") as (_, ticker),
        bystander(url) as some_more,
    ):
        found = await attack("_hostile_client", tmp_path / "s", *(f"lie:{lie}" for lie in lies))
        assert [one["case"] for one in found if not one["hung_up"]] == []
        await ticker.more(5)
        await some_more()
    said = faults(caplog)
    assert len(said) == len(lies), said
    for text, (_, expected) in zip(said, lies.values(), strict=True):
        assert re.search(expected, text), text


async def test_attacks_that_break_nothing(tmp_path: Path, serving: Any) -> None:
    """What is strange but not forbidden is borne, and costs the others nothing.

    A payload that changes while it is read: the handler has a copy of its own.
    """
    url = f"l5+unix://{tmp_path}/s"
    async with serving(url) as (_, ticker), bystander(url) as some_more:
        cases = [f"ring:{name}" for name in _lies.HARMLESS]
        for one in await attack("_hostile_client", tmp_path / "s", *cases):
            assert one["sound"], one
        await ticker.more(5)
        await some_more()


async def test_noise(tmp_path: Path, serving: Any) -> None:
    """A second of random bytes over control words and rings, from a client and from a server."""
    url, other = f"l5+unix://{tmp_path}/s", f"l5+unix://{tmp_path}/other"
    async with serving(url) as (_, ticker), bystander(url) as some_more:
        async with attacker("_hostile_server", tmp_path / "other", "noise:1.0") as server:
            peers = 0

            async def be_a_client() -> None:
                nonlocal peers
                while True:
                    try:
                        async with await l5.connect(other, ring=65536) as connection:
                            peers += 1
                            await talk(connection)
                    except l5.ConnectError:
                        return

            async with anyio.create_task_group() as group:
                group.start_soon(be_a_client)
                before = ticker.ticks
                found = await attack("_hostile_client", tmp_path / "s", "noise:1.0")
                assert found[0]["peers"] > 1
                assert ticker.ticks > before + 5
                await some_more()
            assert peers > 1
            assert (await server.says())["peers"] == peers


async def talk(connection: l5.Connection) -> None:
    """Use a connection in every way until it breaks, by an error that is one of its own."""
    try:
        while True:
            with anyio.move_on_after(0.01):
                await connection.send(bytes(1000))
            with anyio.move_on_after(0.01):
                async with connection.lease() as message:
                    assert len(message.view) <= 16384 or not message.in_place
            with anyio.move_on_after(0.01):
                await connection.receive()
            with anyio.move_on_after(0.01):
                await connection.request(b"x")
    except (l5.RemoteProtocolError, anyio.BrokenResourceError, anyio.EndOfStream):
        pass
    except l5.RequestFailed:
        pass


async def test_lies_to_a_client(tmp_path: Path) -> None:
    """Whatever the client waits for, it is told what the server did; others are untouched."""
    lies = _lies.LIES | _lies.TO_CLIENTS
    url, good = f"l5+unix://{tmp_path}/bad", f"l5+unix://{tmp_path}/good"
    cases = [f"lie:{lie}" for lie in lies]
    async with (
        victim(good) as (_, ticker),
        bystander(good) as some_more,
        attacker("_hostile_server", tmp_path / "bad", *cases) as server,
    ):
        ways = itertools.cycle(("receive", "lease", "request"))
        for way, (case, (_, expected)) in zip(ways, lies.items(), strict=False):
            connection = await l5.connect(url, ring=65536)
            assert connection.transport == "shm"
            with pytest.raises(l5.RemoteProtocolError, match=expected):
                if way == "receive":
                    await connection.receive()
                elif way == "lease":
                    async with connection.lease():
                        pass
                else:
                    await connection.request(b"x")
            for again in (connection.send, connection.request):
                with pytest.raises(l5.RemoteProtocolError, match=expected):
                    await again(b"x")
            assert (await server.says()) == {"case": f"lie:{case}", "hung_up": True}
            await connection.aclose()
        await ticker.more(5)
        await some_more()


async def test_a_server_lies_about_what_it_has_read(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    cases = [f"lie:{lie}" for lie in _lies.POSITIONS]
    async with attacker("_hostile_server", tmp_path / "s", *cases) as server:
        for _, expected in _lies.POSITIONS.values():
            async with await l5.connect(url, ring=65536) as connection:
                with pytest.raises(l5.RemoteProtocolError, match=expected):
                    while True:
                        await connection.send(bytes(8000))
            assert (await server.says())["hung_up"]


@pytest.mark.parametrize("case", list(_lies.HARMLESS_ANSWERS))
async def test_answers_that_break_nothing(tmp_path: Path, case: str) -> None:
    """What is strange but not forbidden: the client has its answer, and others have their turn."""
    url = f"l5+unix://{tmp_path}/s"
    expected = _lies.HARMLESS_ANSWERS[case][1]
    async with attacker("_hostile_server", tmp_path / "s", f"oddly:{case}") as server:
        async with await l5.connect(url, ring=65536) as connection, ticking() as ticker:
            for _ in range(2):
                assert await connection.request(b"x") == expected
            assert await connection.request(b"sound") == b"sound"
            await ticker.more(5)
        assert (await server.says())["hung_up"]


async def test_a_server_changes_an_answer(tmp_path: Path) -> None:
    """An answer is a copy: what the server writes over it afterwards does not show."""
    url = f"l5+unix://{tmp_path}/s"
    async with attacker("_hostile_server", tmp_path / "s", "flip") as server, ticking() as ticker:
        async with await l5.connect(url, ring=65536) as connection:
            reply = await connection.request(b"x")
            before = hash(bytes(bytearray(reply)))
            await ticker.more(20)
            assert hash(bytes(bytearray(reply))) == before
        assert await server.says()


async def test_data_that_nobody_takes(tmp_path: Path) -> None:
    """A server per connection whose client sends what it may not: more than the window, or lies."""
    errors: list[Exception] = []

    async def handler(connection: l5.Connection) -> None:
        try:
            async with connection.lease() as message:
                bytes(message.view)
            await anyio.sleep_forever()
        except Exception as error:
            errors.append(error)
            raise

    url = f"l5+unix://{tmp_path}/s"
    cases = [f"lie:{lie}" for lie in _lies.LIES]
    async with l5.serve(handler, url, per="connection") as server:
        for one in await attack("_hostile_client", tmp_path / "s", *cases):
            assert one["hung_up"], one
        await until(lambda: not server.statistics().connections)
    assert len(errors) == len(cases)
    for error, (_, expected) in zip(errors, _lies.LIES.values(), strict=True):
        assert isinstance(error, l5.RemoteProtocolError)
        assert re.search(expected, str(error))


async def test_nothing_is_left_of_hundreds(tmp_path: Path, serving: Any) -> None:
    """Neither descriptors, nor mappings, nor memory."""
    url = f"l5+unix://{tmp_path}/s"
    path = tmp_path / "s"
    names = ["word 15", "kind 255", "ABORT of nothing", "read far ahead"]
    async with serving(url) as (server, _):
        await attack("_hostile_client", path, *(f"again:{name}:8" for name in names))
        await until(lambda: not server.statistics().connections)
        before, resident = held(), resident_bytes()
        for one in await attack("_hostile_client", path, *(f"again:{name}:25" for name in names)):
            assert one["hung_up"], one
        await until(lambda: not server.statistics().connections and held() == before)
        assert resident_bytes() - resident < 4 * MIB  # a mapping that stays has 132 KiB


async def test_rings_that_are_too_large(tmp_path: Path) -> None:
    """The server says so, and the client stays on its socket; 16 MiB unless it says otherwise."""
    url = f"l5+unix://{tmp_path}/s"
    async with victim(url), await l5.connect(url, ring="32MiB") as connection:
        assert connection.transport == "unix"
        reason = connection.upgrade_report.reasons["shm"]
        assert "rings of 32 MiB are larger than this server takes (max_ring, 16 MiB)" in reason
        assert await connection.request(b"e") == b"e"
        async with await l5.connect(url, ring="16MiB") as smaller:
            assert smaller.transport == "shm"
    async with (
        victim(url, max_ring="64KiB"),
        await l5.connect(url) as declined,
        await l5.connect(url, ring="64KiB") as connection,
    ):
        assert (declined.transport, connection.transport) == ("unix", "shm")
        (one,) = await attack("_hostile_client", tmp_path / "s", "memory:a size of 128 KiB")
        assert "larger than this server takes" in one["declined"]
