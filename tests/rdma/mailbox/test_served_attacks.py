"""A client that writes what cannot be ends its own connection, and not the server's others."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import l5
from l5.rdma import verbs
from tests.rdma._simulated import simulate


@pytest.fixture(scope="module", params=[pytest.param(("asyncio", {}), id="asyncio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


@pytest.mark.anyio
async def test_a_flag_without_a_row() -> None:
    async with (
        l5.serve(lambda data: data, "l5+rdma://127.0.0.1:0") as server,
        await l5.connect(server.urls[0]) as sound,
        await l5.connect(server.urls[0]) as hostile,
    ):
        assert await hostile.request(b"once") == b"once"
        channel: Any = hostile._session.channel
        channel._flag.post(1, channel._end.slots.take(1, verbs.SIGNALED))
        with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(60):
            await hostile.receive()  # nothing comes but the end
        assert await sound.request(b"sound") == b"sound"
