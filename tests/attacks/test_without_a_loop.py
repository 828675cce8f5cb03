"""The same attacks on `l5.blocking`: servers whose connections have threads, clients in threads.

Of the event loops only the bystanders' is left, so one of them is enough.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

import l5
import l5.blocking
from tests.attacks import _lies
from tests.attacks._support import attacker, blocking_victim, bystander, victim
from tests.attacks.test_doorbell import (
    test_a_server_that_is_rung_without_end,
    test_bells_to_a_server,
    test_ends_of_a_client,
)
from tests.attacks.test_ring import (
    test_attacks_that_break_nothing,
    test_lies_to_a_server,
    test_noise,
    test_nothing_is_left_of_hundreds,
)

__all__ = [
    "test_a_server_that_is_rung_without_end",
    "test_attacks_that_break_nothing",
    "test_bells_to_a_server",
    "test_ends_of_a_client",
    "test_lies_to_a_server",
    "test_noise",
    "test_nothing_is_left_of_hundreds",
]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def serving() -> Any:
    return blocking_victim


async def test_lies_to_a_client(tmp_path: Path) -> None:
    """Whatever its thread waits for, it is told what the server did; others are untouched."""
    lies = _lies.LIES | _lies.TO_CLIENTS
    good = f"l5+unix://{tmp_path}/good"
    cases = [f"lie:{lie}" for lie in lies]
    async with (
        victim(good) as (_, ticker),
        bystander(good) as some_more,
        attacker("_hostile_server", tmp_path / "bad", *cases) as server,
    ):
        ways = itertools.cycle(("receive", "lease", "request"))
        for way, case, (_, expected) in zip(ways, cases, lies.values(), strict=False):
            await to_thread.run_sync(be_lied_to, f"l5+unix://{tmp_path}/bad", way, expected)
            assert await server.says() == {"case": case, "hung_up": True}
        await ticker.more(5)
        await some_more()


def be_lied_to(url: str, way: str, expected: str) -> None:
    with l5.blocking.connect(url, ring=65536) as connection:
        assert connection.transport == "shm"
        with pytest.raises(l5.RemoteProtocolError, match=expected):
            if way == "receive":
                connection.receive()
            elif way == "lease":
                with connection.lease():
                    pass
            else:
                connection.request(b"x")
        for again in (connection.send, connection.request):
            with pytest.raises(l5.RemoteProtocolError, match=expected):
                again(b"x")
