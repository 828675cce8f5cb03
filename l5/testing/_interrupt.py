"""Cancellation at a chosen await: run an operation, cancel it at its n-th suspension."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import anyio
import attrs

T = TypeVar("T")


@attrs.frozen
class Interrupted:
    """What became of an interrupted operation."""

    suspensions: int
    """How often it gave control to the event loop."""
    cancelled: bool
    """It ended by the cancellation (an operation may finish in spite of it)."""
    result: Any = None


async def interrupted(operation: Callable[[], Awaitable[Any]], at: int) -> Interrupted:
    """Run ``operation()`` and cancel it when it suspends for the `at`-th time (from 1).

    Errors of the operation come out as they are.
    """
    watch = _Watch(at)
    with anyio.CancelScope() as scope:
        result = await watch.run(operation(), scope)
        return Interrupted(watch.suspensions, False, result)
    return Interrupted(watch.suspensions, True)


class _Watch:
    def __init__(self, at: int) -> None:
        self._at = at
        self.suspensions = 0

    @types.coroutine
    def run(self, awaitable: Awaitable[T], scope: anyio.CancelScope) -> Generator[Any, Any, T]:
        """Pass everything between the operation and the event loop through, counting.

        What the operation held is let go of with it: an error in this frame, when its traceback
        has this frame, would hold the operation's variables until cycles are collected.
        """
        steps: Any = awaitable.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is not None:
                    yielded = steps.throw(thrown)
                else:
                    yielded = next(steps) if sent is None else steps.send(sent)
            except StopIteration as stop:
                return stop.value
            finally:
                sent = thrown = None
            self.suspensions += 1
            if self.suspensions == self._at:
                scope.cancel()
            try:
                sent = yield yielded
            except BaseException as error:
                thrown = error


async def at_every_await(
    operation: Callable[[int], Awaitable[Any]],
    check: Callable[[int, Interrupted], Awaitable[None]],
    *,
    most: int = 500,
) -> int:
    """Interrupt ``operation(n)`` at its n-th suspension for n = 1, 2, ... until it gets through.

    After each, ``check(n, outcome)`` looks whether the world is sound.  Returns how many awaits
    were tried.
    """
    for at in range(1, most + 1):
        outcome = await interrupted(lambda: operation(at), at)  # noqa: B023 - awaited at once
        await check(at, outcome)
        if outcome.suspensions < at:
            return at - 1
    raise AssertionError(f"the operation suspends more than {most} times")
