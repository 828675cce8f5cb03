"""The hub: whoever leaves hands the driving over, whatever happens at the same time."""

import os
from collections.abc import Callable

import anyio
import pytest

from l5._wait import Hub, Waiter

pytestmark = pytest.mark.anyio


class Doorbell:
    """An endpoint over a pipe that calls back when it is written to."""

    def __init__(self, on_bell: Callable[[], None]) -> None:
        self.reading, self.writing = os.pipe()
        self.on_bell = on_bell

    def fds(self) -> tuple[int, ...]:
        return (self.reading,)

    def wants_write(self) -> bool:
        return False

    def on_ready(self) -> None:
        pass

    def on_event(self, fd: int, readable: bool, writable: bool) -> None:
        os.read(fd, 100)
        self.on_bell()

    def arm(self) -> bool:
        return True

    def drop_in_child(self) -> None:
        raise AssertionError

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


async def test_heir_that_is_ready_already_hands_over() -> None:
    hub = Hub()
    first, second, third = Waiter(), Waiter(), Waiter()
    bell = Doorbell(third.wake)
    hub.attach(bell)

    async def drive() -> None:
        await hub.park(first)
        # The second was told to drive, and is woken for good before it ran.
        second.wake()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for task in (drive, lambda: hub.park(second), lambda: hub.park(third)):
                group.start_soon(task)
                await anyio.wait_all_tasks_blocked()
            first.wake()
            await anyio.wait_all_tasks_blocked()
            os.write(bell.writing, b"x")
    hub.detach(bell)
    bell.close()
