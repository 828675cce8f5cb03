"""Doorbells that a hostile process rings, or not; the table: docs/security-shared-memory.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from tests.attacks import _bells, _hostile_server
from tests.attacks._support import (
    attack,
    attacker,
    bystander,
    held,
    ticking,
    until,
    victim,
)
from tests.attacks.test_ring import native_victim

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]


@pytest.fixture(params=["python", "native"])
def serving(request: pytest.FixtureRequest) -> Any:
    return victim if request.param == "python" else native_victim


async def test_bells_to_a_server(tmp_path: Path, serving: Any) -> None:
    """A bell carries nothing: however it is rung, the connection is sound afterwards."""
    url, path = f"l5+unix://{tmp_path}/s", tmp_path / "s"
    async with serving(url) as (_, ticker), bystander(url) as some_more:
        await attack("_hostile_client", path, "bell:never rung")
        before = held()
        for one in await attack("_hostile_client", path, *(f"bell:{b}" for b in _bells.BELLS)):
            assert one["sound"], one
        await ticker.more(5)
        await some_more()
        await until(lambda: held() == before)


@pytest.mark.parametrize("what", ["bells", "control"])
async def test_a_server_that_is_rung_without_end(tmp_path: Path, serving: Any, what: str) -> None:
    """The attack goes on until the others have been served for a while: it must not matter."""
    url = f"l5+unix://{tmp_path}/s"
    async with serving(url) as (_, ticker), bystander(url) as some_more:
        async with attacker("_hostile_client", tmp_path / "s", f"endless {what}"):
            await ticker.more(50)
            for _ in range(10):
                await some_more()


@pytest.mark.parametrize("way", _bells.ENDS)
async def test_ends_of_a_client(tmp_path: Path, serving: Any, way: str) -> None:
    """Closed, or shut down in one direction: the connection ends, and nothing else does."""
    url = f"l5+unix://{tmp_path}/s"
    async with serving(url) as (server, ticker), bystander(url) as some_more:
        (one,) = await attack("_hostile_client", tmp_path / "s", f"end:{way}")
        assert one["ended"]
        await until(lambda: server.statistics().connections == 1)
        await ticker.more(5)
        await some_more()


@pytest.mark.parametrize("bell", list(_hostile_server.TO_CLIENTS))
async def test_bells_to_a_client(tmp_path: Path, bell: str) -> None:
    url = f"l5+unix://{tmp_path}/s"
    async with attacker("_hostile_server", tmp_path / "s", f"bell:{bell}") as server:
        async with await l5.connect(url, ring=65536) as connection, ticking() as ticker:
            assert await connection.request(b"before") == b"before"
            assert await connection.request(b"after") == b"after"
            await ticker.more(5)
        assert (await server.says())["hung_up"]


async def test_a_server_that_hangs_up(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    async with attacker("_hostile_server", tmp_path / "s", "hang up") as server:
        async with await l5.connect(url, ring=65536) as connection:
            with pytest.raises(anyio.BrokenResourceError, match="closed the socket without a word"):
                await connection.request(b"x")
        assert await server.says()


async def test_bells_in_the_handshake(tmp_path: Path) -> None:
    """Bytes behind the upgrade are bells already; bytes before it are none of the protocol's."""
    url = f"l5+unix://{tmp_path}/s"
    async with victim(url) as (_, ticker), bystander(url):
        cases = "end:bells behind the upgrade", "end:bells before the upgrade"
        behind, before = await attack("_hostile_client", tmp_path / "s", *cases)
        assert behind["ended"] == "sound"
        assert "does not speak l5" in before["ended"]
        await ticker.more(5)
