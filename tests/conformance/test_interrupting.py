"""What `l5.testing` interrupts is let go of at once: a suite that counts would count it still."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest

from l5.testing import Interrupted, at_every_await


class Held:
    """Stands for what ends when nobody has it any more, as a region does."""


@pytest.mark.anyio
async def test_nothing_of_the_interrupted_is_kept_for_the_collector() -> None:
    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    async def operation(number: int) -> None:
        held = Held()
        alive.add(held)
        for _ in range(5):
            await anyio.sleep(0.001)

    async def check(number: int, outcome: Interrupted) -> None:
        # The newest may be kept until the next: the event loop has its error still.
        assert len(alive) <= 1, f"{len(alive)} after {number}"

    gc.disable()
    try:
        assert await at_every_await(operation, check) >= 5
    finally:
        gc.enable()
