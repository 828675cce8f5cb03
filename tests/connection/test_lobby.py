"""Who makes room for whom: nobody, as long as there is room."""

from __future__ import annotations

import anyio
import pytest

from l5._lobby import Lobby

pytestmark = pytest.mark.anyio


async def be_silent(lobby: Lobby, number: int, gone: list[int]) -> None:
    with lobby.holding() as guest:
        with guest.scope:
            await anyio.sleep_forever()
        if guest.evicted:
            gone.append(number)


async def test_nobody_goes_while_there_is_a_place() -> None:
    """However long the loop was held up: a guest that had no turn was not silent."""
    lobby = Lobby(2, 10.0)
    gone: list[int] = []
    async with anyio.create_task_group() as tasks:
        await lobby.take_place()
        tasks.start_soon(be_silent, lobby, 0, gone)
        await anyio.wait_all_tasks_blocked()
        [guest] = lobby.silent
        guest.arrived -= 2 * lobby.chance  # as if nothing had run since then
        await lobby.take_place()
        await anyio.wait_all_tasks_blocked()
        assert not guest.evicted and not gone and guest in lobby.silent
        tasks.cancel_scope.cancel()


async def test_who_is_silent_longest_goes_when_all_places_are_taken() -> None:
    lobby = Lobby(2, 0.1)
    gone: list[int] = []
    async with anyio.create_task_group() as tasks:
        for number in range(2):
            await lobby.take_place()
            tasks.start_soon(be_silent, lobby, number, gone)
            await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await lobby.take_place()
        assert gone == [0]
        with lobby.holding():
            pass
        tasks.cancel_scope.cancel()
