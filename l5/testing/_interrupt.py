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
        """Pass everything between the operation and the event loop through, counting."""
        steps: Any = awaitable.__await__()
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731 - it changes below
        while True:
            try:
                yielded = step()
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                scope.cancel()
            try:
                sent = yield yielded
            except BaseException as error:
                step = _thrower(steps, error)
            else:
                step = _sender(steps, sent)


def _sender(steps: Any, value: Any) -> Callable[[], Any]:
    return (lambda: next(steps)) if value is None else (lambda: steps.send(value))


def _thrower(steps: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


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
