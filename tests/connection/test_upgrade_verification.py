"""Upgrades that verify their way before both ends switch, and fall back if it does not work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import _registry
from l5.abc import (
    Channel,
    Link,
    Probe,
    UpgradeAttempt,
    UpgradeMessage,
    UpgradeTransport,
)

pytestmark = pytest.mark.anyio
Params = Mapping[str, int | str | bytes | bool]


class Detour(UpgradeTransport):
    """Takes the same socket, under another name, if both ends find the way passable."""

    name: ClassVar[str] = "detour"
    needs_fds: ClassVar[bool] = False
    fails_at: ClassVar[str] = ""
    abandoned: ClassVar[list[str]] = []
    heard: ClassVar[list[object]] = []

    def probe(self) -> Probe:
        return Probe(True)

    def offer(self, link: Link, options: Any) -> Params:
        return {}

    def judge(self, link: Link, params: Params, options: Any) -> str | None:
        return None

    def memory_bytes(self, params: Params) -> int:
        return 1 << 20

    def initiate(self, link: Link, params: Params, options: Any) -> UpgradeAttempt:
        return Attempt("client", {"from": "client"})

    def join(self, link: Link, params: Params, fds: Sequence[int], options: Any) -> UpgradeAttempt:
        assert not fds
        Detour.heard.append(params["from"])
        return Attempt("server", {"from": "server"})


class Attempt(UpgradeAttempt):
    verifies: ClassVar[bool] = True

    def __init__(self, end: str, params: Params) -> None:
        self.end = end
        self.message = UpgradeMessage(params, ())

    async def verify(self, link: Link, answer: Params) -> None:
        if self.end == "client":
            Detour.heard.append(answer["from"])
            await anyio.lowlevel.checkpoint()
        if Detour.fails_at == self.end == "client":
            raise l5.TransportUnavailable("detour", "a tree lies across the road")
        if Detour.fails_at == "cut":
            link.abort()
            await anyio.sleep_forever()
        if self.end == "server":
            await anyio.sleep_forever()

    def complete(self, link: Link, *, send_limit: int, receive_limit: int) -> Channel:
        channel = link.into_channel(send_limit=send_limit, receive_limit=receive_limit)
        channel.transport = "detour"
        return channel

    def abandon(self) -> None:
        Detour.abandoned.append(self.end)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Detour.fails_at = ""
    Detour.abandoned = []
    Detour.heard = []


@asynccontextmanager
async def connected(
    patience_s: float = 60.0, **options: Any
) -> AsyncGenerator[tuple[l5.Connection, l5.Server]]:
    with _registry.register_for_tests("detour", Detour):
        url = "l5://127.0.0.1:0?transports=detour"
        async with l5.serve(lambda request: request, url, **options) as server:
            ours = {"transports": "detour", "hello_timeout": patience_s}
            async with await l5.connect(server.urls[0], **ours) as client:
                yield client, server


async def test_a_verified_upgrade_over_tcp_needs_no_rendezvous() -> None:
    async with connected() as (client, server):
        assert client.transport == "detour"
        assert await client.request(b"hello") == b"hello"
        assert Detour.heard == ["client", "server"]
        assert Detour.abandoned == []
        assert server._acceptor.tickets.address is None
        assert server._acceptor.shared.used == 1 << 20


async def test_what_the_client_finds_keeps_both_on_the_socket() -> None:
    Detour.fails_at = "client"
    async with connected() as (client, server):
        assert client.transport == "tcp"
        assert client.upgrade_report.reasons["detour"] == "a tree lies across the road"
        assert await client.request(b"hello") == b"hello"
        assert sorted(Detour.abandoned) == ["client", "server"]
        assert server._acceptor.shared.used == 0
        (session,) = server._sessions
        assert session.report.reasons["detour"] == "at the client: a tree lies across the road"


async def test_a_link_that_dies_meanwhile_leaves_nothing() -> None:
    Detour.fails_at = "cut"
    for patience_s in (0.1, 1.0, 10.0):  # on a busy machine the hello itself may take the time
        with pytest.raises(l5.ConnectError):
            async with connected(patience_s, hello_timeout=patience_s):
                pytest.fail("connected over a dead link")
        assert sorted(Detour.abandoned) in ([], ["client"], ["client", "server"])
        if len(Detour.abandoned) == 2:
            break
        Detour.abandoned = []
    assert sorted(Detour.abandoned) == ["client", "server"]
