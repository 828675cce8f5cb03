"""A server for an adopter's tests, which can be told to misbehave."""

from __future__ import annotations

import inspect
import itertools
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

import l5

from ._harness import why_not

TRANSPORTS = ("inproc", "tcp", "unix", "shm")
_names = itertools.count()


@attrs.define(eq=False)
class Faults:
    """What a `FaultyServer` does wrong; change it at any time."""

    delay_s: float = 0.0
    """How long each request waits before its handler runs."""
    error: Exception | None = None
    """What each request is answered with instead."""
    silent: bool = False
    """No request is answered."""
    cut_after: int | None = None
    """Requests after which each further one cuts all connections instead of being answered."""


class FaultyServer:
    """A running server, its `faults`, and `cut`."""

    def __init__(self, server: l5.Server, faults: Faults) -> None:
        self.server = server
        self.faults = faults
        self.requests: int = 0

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.server.urls[0]

    def cut(self) -> int:
        """Break every connection without a word, as a dead peer does; return how many."""
        sessions = [s for s in self.server._sessions if s.state == "OPEN"]
        for session in sessions:
            session.fail(anyio.BrokenResourceError("cut by a test"))
        return len(sessions)

    async def answer(self, handler: Callable[..., Any], request: bytes) -> Any:
        """Handle a request as the faults say."""
        faults = self.faults
        self.requests += 1
        if faults.cut_after is not None and self.requests > faults.cut_after:
            self.cut()
            return b""
        if faults.silent:
            await anyio.sleep_forever()
        if faults.delay_s:
            await anyio.sleep(faults.delay_s)
        if faults.error is not None:
            raise faults.error
        result = handler(request)
        return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def faulty_server(
    handler: Callable[[bytes], Any],
    transport: str = "shm",
    *,
    upgrade: bool = True,
    admit: bool = True,
    **options: Any,
) -> AsyncGenerator[FaultyServer]:
    """Serve `handler` at a fresh address of a transport, with faults that can be switched on.

    With ``upgrade=False`` connections to an ``shm`` server stay on the socket; with
    ``admit=False`` all are turned away.  Raises `l5.TransportUnavailable` where the transport
    cannot be used.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport={transport!r}: expected one of {', '.join(TRANSPORTS)}")
    reason = why_not(transport)
    if reason:
        raise l5.TransportUnavailable(transport, reason)
    with tempfile.TemporaryDirectory(prefix="l5-") as folder:
        urls = {
            "inproc": f"l5+inproc://test-{os.getpid()}-{next(_names)}",
            "tcp": "l5+tcp://127.0.0.1:0",
            "unix": f"l5+unix://{folder}/s?transports=unix",
            "shm": f"l5+unix://{folder}/s" + ("" if upgrade else "?transports=unix"),
        }
        if not admit:
            options["allow"] = lambda peer: False  # pyright: ignore[reportUnknownLambdaType]
        holder: list[FaultyServer] = []

        async def answer(request: bytes) -> Any:
            return await holder[0].answer(handler, request)

        options.setdefault("grace", 0.0)
        async with l5.serve(answer, urls[transport], **options) as server:
            holder.append(FaultyServer(server, Faults()))
            yield holder[0]
