"""What a handler may do to connections while `Poller.serve` runs it."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import native

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


@pytest.fixture
def url() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as path:
        yield f"l5+shm://{Path(path) / 's'}"


def sessions_of(server: Any) -> list[Any]:
    return list(server._sessions)


def close_own(server: Any, others: list[Any]) -> None:
    next(s for s in sessions_of(server) if s.ring.handling).close()


def close_others(server: Any, others: list[Any]) -> None:
    for session in sessions_of(server):
        if not session.ring.handling:
            session.close()


def close_all(server: Any, others: list[Any]) -> None:
    for session in sessions_of(server):
        session.close()


def close_clients(server: Any, others: list[Any]) -> None:
    for connection in others:
        connection._session.close()


def poll_again(server: Any, others: list[Any]) -> None:
    poller = server._hub.poller
    for _ in range(3):
        for session in poller.ready():
            session.on_ready()
        assert poller.serve(object(), None) is not False


@pytest.mark.parametrize(
    "action",
    [close_own, close_others, close_all, close_clients, poll_again],
    ids=lambda a: a.__name__,
)
@pytest.mark.parametrize("suspends", [False, True])
async def test_handler_that_meddles(
    url: str, action: Callable[[Any, list[Any]], None], suspends: bool
) -> None:
    async def handle(payload: bytes) -> bytes:
        if payload == b"now":
            action(server, others)
        if suspends:
            await anyio.lowlevel.checkpoint()
        return payload

    async def ask(connection: l5.Connection, payload: bytes) -> None:
        try:
            assert await connection.request(payload) == payload
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    server = l5.serve(handle, url)
    async with server:
        others = [await l5.connect(url) for _ in range(6)]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for i, connection in enumerate(others):
                    for _ in range(5):
                        group.start_soon(ask, connection, b"now" if i == 2 else b"later")
            async with await l5.connect(url) as fresh:
                assert await fresh.request(b"sound") == b"sound"
        for connection in others:
            await connection.aclose()


async def test_other_connections_are_used_within_a_handler(url: str) -> None:
    async def inner(payload: bytes) -> bytes:
        return payload + b"!"

    inner_url = url.replace("/s", "/t")
    async with l5.serve(inner, inner_url), await l5.connect(inner_url) as behind:

        async def outer(payload: bytes) -> bytes:
            return await behind.request(payload)

        async with l5.serve(outer, url), await l5.connect(url) as connection:
            with anyio.fail_after(60):
                for _ in range(300):
                    assert await connection.request(b"x") == b"x!"
