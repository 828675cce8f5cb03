"""Faults put in on purpose, to show that a soak finds them: ``--sabotage NAME``."""

from __future__ import annotations

import os
import random
from typing import Any

import anyio

import l5

RARELY = 8
"""One message in so many is tampered with."""


def commit(name: str) -> None:
    """Break this process's l5 in the way that `name` says; "" is not at all."""
    if name:
        FAULTS[name]()


def _on_receive(tamper: Any) -> None:
    original = l5.Connection.receive

    async def receive(self: l5.Connection) -> bytes:
        message = await original(self)
        if random.randrange(RARELY):
            return message
        return await tamper(self, message, original)

    l5.Connection.receive = receive


def _lose() -> None:
    async def tamper(connection: Any, _: bytes, original: Any) -> bytes:
        return await original(connection)

    _on_receive(tamper)


def _twice() -> None:
    async def tamper(connection: Any, message: bytes, _: Any) -> bytes:
        connection._session.inbox.appendleft(message)
        connection._session.untaken += 1
        return message

    _on_receive(tamper)


def _corrupt() -> None:
    async def tamper(_: Any, message: bytes, __: Any) -> bytes:
        at = random.randrange(len(message))
        return message[:at] + bytes((message[at] ^ 1,)) + message[at + 1 :]

    _on_receive(tamper)


def _forget() -> None:
    async def tamper(*_: Any) -> bytes:
        await anyio.sleep_forever()
        raise AssertionError

    _on_receive(tamper)


def _leak() -> None:
    original = l5.Connection.aclose

    async def aclose(self: l5.Connection) -> None:
        await original(self)
        os.dup(0)

    l5.Connection.aclose = aclose


def _break() -> None:
    original = l5.Connection.send

    async def send(self: l5.Connection, item: Any) -> None:
        if not random.randrange(RARELY):
            raise anyio.BrokenResourceError("of itself")
        await original(self, item)

    l5.Connection.send = send


FAULTS: dict[str, Any] = {
    "lose": _lose,
    "twice": _twice,
    "corrupt": _corrupt,
    "forget": _forget,
    "leak": _leak,
    "break": _break,
}
