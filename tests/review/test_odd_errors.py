"""Handlers raise odd things: each answers its own request, and nobody else notices."""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
import l5.blocking
from l5 import native

pytestmark = pytest.mark.anyio
BINDS = ["shm", "unix"] if native.available else ["unix"]


class Mute(Exception):
    """Has no text, nor anything for a log."""

    def __str__(self) -> str:
        raise RuntimeError("there is none")

    __repr__ = __str__


ODD: dict[bytes, tuple[BaseException, str, str]] = {
    b"mute": (Mute(), "Mute", r"its str\(\) raised RuntimeError"),
    b"wrapped": (l5.HandlerError("Odd", KeyError("why")), "Odd", "why"),  # type: ignore[arg-type]
    b"number": (l5.HandlerError("Odd", 5), "Odd", "5"),  # type: ignore[arg-type]
    b"none": (l5.HandlerError(None, "x"), "None", "x"),  # type: ignore[arg-type]
    b"half": (ValueError("\udcff"), "ValueError", r"\?"),
    b"long": (ValueError("é" * 100_000), "ValueError", "éé"),
}


def odd(request: bytes) -> bytes:
    if request in ODD:
        raise ODD[request][0]
    return request


async def odd_and_slow(request: bytes, context: l5.RequestContext) -> bytes:
    del context
    await anyio.lowlevel.checkpoint()
    return odd(request)


@pytest.fixture(autouse=True)
def no_log() -> Generator[None]:
    """Formatting them for a log fails, which is the log's business, and pytest raises it."""
    logger = logging.getLogger("l5.server")
    logger.disabled = True
    yield
    logger.disabled = False
    for error, _, _ in ODD.values():  # raised again, it would keep all that it came through
        error.__traceback__ = error.__context__ = None


async def ask(url: str) -> None:
    async with await l5.connect(url) as connection, await l5.connect(url) as other:
        for request, (_, type_name, text) in ODD.items():
            with pytest.raises(l5.RequestFailed, match=text) as caught:
                await connection.request(request)
            assert caught.value.remote_type == type_name
            assert await connection.request(b"sound") == await other.request(b"sound")


@pytest.mark.parametrize("bind", BINDS)
@pytest.mark.parametrize("handler", [odd, odd_and_slow])
async def test_async_servers(tmp_path: Path, bind: str, handler: Any) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={bind}"
    async with l5.serve(handler, url):
        await ask(url)


@pytest.mark.parametrize("bind", BINDS)
async def test_servers_in_threads(tmp_path: Path, bind: str) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={bind}"
    with l5.blocking.serve(odd, url):
        await ask(url)
