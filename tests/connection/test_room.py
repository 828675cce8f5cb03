"""Who waits for room in a ring hears of it, whoever was told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from l5._wait import Hub, Waiter

pytestmark = pytest.mark.anyio


async def test_the_leader_of_a_server_does_not_keep_it_to_itself() -> None:
    """A poller tells once that there is room: then the ring looks as if nobody waited for it."""
    server, woken = object(), list[int]()
    session = SimpleNamespace(
        server=server,
        ring=object(),
        state="OPEN",
        senders={Waiter(): None},
        _control=(),
        leaving=None,
        on_ready=lambda: woken.append(1),
    )
    poller: Any = SimpleNamespace(ready=lambda: [session])
    hub, leader = Hub(), Waiter(server)
    assert hub._poll_rings(leader, poller)
    assert woken == [1]
    session.senders.clear()
    assert hub._poll_rings(leader, poller)
    assert woken == [1] and leader.ready  # frames are the leader's own to take
