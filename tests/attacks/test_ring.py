"""Rings into which a hostile process writes; see docs/security-shared-memory.md for the table."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import l5
from tests.attacks import _lies
from tests.attacks._support import (
    Ticker,
    attack,
    bystander,
    victim,
)
from tests.native import _handlers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]
MIB = 1 << 20


@asynccontextmanager
async def native_victim(url: str) -> AsyncIterator[tuple[l5.Server, Ticker]]:
    service = l5.NativeService(_handlers.address(), keep_alive=_handlers.library())
    async with victim(url, service) as (server, ticker):
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
    async with serving(url) as (_, ticker), bystander(url) as some_more:
        found = await attack("_hostile_client", tmp_path / "s", *(f"lie:{lie}" for lie in lies))
        assert [one["case"] for one in found if not one["hung_up"]] == []
        await ticker.more(5)
        await some_more()
    said = faults(caplog)
    assert len(said) == len(lies), said
    for text, (_, expected) in zip(said, lies.values(), strict=True):
        assert re.search(expected, text), text
