"""Who listens for the ends of a native service's connections, when several end at once."""

import os
from typing import Any

import anyio
import pytest

from l5 import NativeService, native
from l5._service import _Waiter

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


class Ends(NativeService):
    """A service whose workers are this test."""

    def __init__(self) -> None:
        super().__init__(1)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.ended: list[Any] = []

    def fileno(self) -> int:
        return self.bell

    def drain_done(self) -> int:
        os.eventfd_read(self.bell)
        ended, self.ended = self.ended, []
        for waiter in ended:
            waiter.finish()
        return len(ended)

    def end(self, *waiters: Any) -> None:
        self.ended += waiters
        os.eventfd_write(self.bell, 1)


async def test_listener_and_its_heir_end_together() -> None:
    service = Ends()
    waiters = [_Waiter() for _ in range(3)]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for waiter in waiters:
                group.start_soon(service._wait_done, waiter)
                await anyio.wait_all_tasks_blocked()
            service.end(waiters[0], waiters[1])
            await anyio.sleep(0.05)
            service.end(waiters[2])
    os.close(service.bell)


async def test_heir_is_cancelled_when_it_is_called() -> None:
    service = Ends()
    waiters = [_Waiter() for _ in range(3)]
    scopes = [anyio.CancelScope() for _ in waiters]

    async def wait(scope: anyio.CancelScope, waiter: _Waiter) -> None:
        with scope:
            await service._wait_done(waiter)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for scope, waiter in zip(scopes, waiters, strict=True):
                group.start_soon(wait, scope, waiter)
                await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[1].cancel()
            await anyio.sleep(0.05)
            service.end(waiters[2])
    os.close(service.bell)
