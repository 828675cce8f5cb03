"""Batches of an `OffloadingClient`: who does which, and what its policy hears of it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import attrs

import l5
from catfish_app._batch import TURN_ROWS, Batch, Found, in_turns
from catfish_app._client import RTreeClient
from catfish_app._direct import Disturbed
from catfish_app._paces import Pace
from catfish_app._requests import renumbered
from catfish_app._ways import NOTHING

if TYPE_CHECKING:
    from catfish_app._offloading import OffloadingClient
    from catfish_app._rtree import Floats

_SERVER, _CLIENT = l5.Path.SERVER, l5.Path.CLIENT
BATCH_ASKED = 16
"""So often the policy is asked for a batch: for each row it would take longer than searching."""


async def search_many(client: OffloadingClient, rows: Floats) -> Found:
    """Search rows, which have been checked, the way or ways that the client's policy says."""
    began, asked = perf_counter(), min(len(rows), BATCH_ASKED)
    choose, ours = client._policy.choose, 0
    if asked and not client._reason:
        ours = client._choose(began) is _CLIENT  # it hears what the server says, too
        for _ in range(asked - 1):
            ours += choose(began) is _CLIENT
    sides = BatchSides(client, {_CLIENT: ours, _SERVER: asked - ours})
    done = False
    try:
        found = await sides.search(rows)
        done = True
        return found
    finally:
        sides.tell_the_rest(done)


@attrs.define(eq=False)
class BatchSides:
    """Both sides of one batch: see `catfish_app._batch.Sides`."""

    client: OffloadingClient
    chosen: dict[l5.Path, int]
    """Requests that the policy chose for each way, and has not been told of."""

    async def search(self, rows: Floats) -> Found:
        """Search rows on one side, or on both."""
        paces, began = self.client._paces, perf_counter()
        whose = self._whose(len(rows), began)
        if whose is None and await self.client._reach() is None:
            whose = paces.theirs
        if whose is None:
            batch = Batch(rows, self, paces)
            found = await batch.search()
            self.client._client_count += batch.taken_over
            return found
        if whose is paces.theirs:
            found = await self.ask(rows, 0)
            whose.note(perf_counter() - began, len(rows))
        else:
            found = await self.here(rows, 0)
            paces.note_ours(perf_counter() - began, len(rows))
        return found

    def _whose(self, count: int, now: float) -> Pace | None:
        """Return the pace of the side that is to do all of a batch; None: both do."""
        client, paces = self.client, self.client._paces
        ours, theirs = self.chosen[_CLIENT], self.chosen[_SERVER]
        if not ours or not theirs:
            # A policy of the caller's own is obeyed. The usual one judges single requests: that one
            # way is the shorter does not mean that both at once are not shorter still. But a
            # server that is busy is left alone.
            known = client._tree is not None and paces.ours.rows and paces.theirs.rows
            policy = client._policy
            if not known or not client._saves_server or not isinstance(policy, l5.AdaptivePolicy):
                return paces.ours if ours else paces.theirs
            if not theirs and policy.server_share < 1.0:
                return paces.ours
        return paces.alone(count, now)

    async def here(self, rows: Floats, first: int) -> Found:
        """Search here, or ask the server where writers leave no time for that."""
        client, began = self.client, perf_counter()
        step = max(TURN_ROWS, client._paces.turn_rows())
        try:
            found = await client._direct(
                lambda tree, _: in_turns(tree.search_many, rows, step),
                (0, 0, 0, 0),
                began,
                len(rows),
                self.chosen,
            )
            if found is not None:
                return found
            given_up, found = client._given_up, await RTreeClient.search_many(client, rows)
        except ValueError as error:
            raise renumbered(error, first) from None
        client._note_served(began, given_up, len(rows))
        client._note_many(_CLIENT, perf_counter() - began, len(rows), self.chosen)
        return found

    async def ask(self, rows: Floats, first: int) -> Found:
        """Have the server search."""
        client, began = self.client, perf_counter()
        try:
            answer = await RTreeClient.search_many(client, rows)
        except ValueError as error:
            raise renumbered(error, first) from None
        client._note_served(began, None, len(rows))
        client._note_many(_SERVER, perf_counter() - began, len(rows), self.chosen)
        return answer

    async def instead(self, rows: Floats, first: int) -> Found | None:
        """Search here what the server was asked for; counted by who makes use of it."""
        client = self.client
        tree = client._tree
        if tree is None:
            return None
        try:
            return await tree.search_many(rows)
        except ValueError as error:
            raise renumbered(error, first) from None
        except Disturbed:
            return None
        except l5.RemoteAccessError as error:
            client._lose(error)
            return None

    def tell_the_rest(self, done: bool) -> None:
        """Tell the policy of requests that the other way has done, or nobody has."""
        client, now = self.client, perf_counter()
        paces = {_CLIENT: client._paces.ours, _SERVER: client._paces.theirs}
        for path, count in self.chosen.items():
            if count:
                # Nothing was found out, except where it failed: then it took as long as that.
                took_s = paces[path].row_s if done else 0.0
                client._observe(path, took_s or NOTHING, now, 0, count)
