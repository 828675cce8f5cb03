"""The places of those who shake hands: a bounded number, and none of them for the silent."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import attrs

CHANCE = 0.1
"""The part of `hello_timeout` that nobody can be turned away in, however many wait."""


@attrs.define(eq=False)
class Guest:
    """Who holds a place."""

    lobby: Lobby
    arrived: float
    scope: anyio.CancelScope
    evicted: bool = False
    counted: bool = False
    """Its connection has a place among those that the server takes."""

    def heard(self) -> None:
        """Note its hello: from now on it is not silent, and keeps its place."""
        self.lobby.silent.pop(self, None)


class Lobby:
    """At most `places` at once; when all are taken, the silent one of longest makes room.

    One task calls `take_place`, and one task for each place that it took enters `holding`, which
    gives the place back.
    """

    def __init__(self, places: int, hello_timeout: float) -> None:
        self._free = anyio.Semaphore(places)
        self._hello_timeout = hello_timeout
        self.chance: float = CHANCE * hello_timeout
        self.silent: dict[Guest, None] = {}
        """Those whose hello is not here, or not all of it, by their arrival."""

    async def take_place(self) -> None:
        """Wait for a place; if none is free, the oldest silent guest goes after its chance."""
        while self.silent and not self._free.value:
            oldest = next(iter(self.silent))
            left = oldest.arrived + self.chance - anyio.current_time()
            with anyio.move_on_after(max(left, 0.0)):
                await self._free.acquire()
                return
            await anyio.lowlevel.checkpoint()  # its hello may be here: the loop may have been held
            if oldest in self.silent and not self._free.value:
                oldest.heard()
                oldest.evicted = True
                oldest.scope.cancel()
                break  # it goes within half a second, whatever it does
        await self._free.acquire()

    @contextmanager
    def holding(self) -> Generator[Guest]:
        """Hold a place that was taken; its `scope` ends by `hello_timeout`, or by eviction."""
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._hello_timeout)
        guest = Guest(self, anyio.current_time(), scope)
        self.silent[guest] = None
        try:
            yield guest
        finally:
            guest.heard()
            self._free.release()
