"""`OffloadingClient`: an R-tree client that searches by itself, always or when the server is busy.

What changes the tree is always the server's work, and so is what asks for the tree's shape. A
search goes the way that the policy says (`l5.OffloadPolicy`; `l5.AdaptivePolicy` unless told
otherwise), which hears the server's heartbeats and how long searches took.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import anyio
import numpy as np
import numpy.typing as npt

import l5
from catfish_app._client import RTreeClient
from catfish_app._direct import DirectTree, Disturbed, checked_queries, open_tree
from catfish_app._mapped import no_tree
from catfish_app._paces import Paces
from catfish_app._requests import (
    SEARCH,
    Mode,
    bad_rect,
    check_k,
    ids_of,
    pack_rect,
    place,
    said_of_search,
)
from catfish_app._rtree import Floats, Ids
from catfish_app._sharing import search_many
from catfish_app._ways import NOTHING, OffloadStatistics, SearchReport, Ways, not_worth_it

if TYPE_CHECKING:
    from catfish_app._requests import Rect

__all__ = ["OffloadStatistics", "OffloadingClient", "SearchReport"]

T = TypeVar("T")

_SERVER, _CLIENT = l5.Path.SERVER, l5.Path.CLIENT


class OffloadingClient(Ways, RTreeClient):
    """An `RTreeClient` that searches the tree itself, in the server's memory.

    With ``mode="client"`` it always does; `l5.RemoteAccessError` when the server offers no tree for
    that. With ``"adaptive"`` it does what `policy` says, and stays with the server where there is
    no other way: `statistics` tells the reason. Unless a policy is given it does so, too, where
    reading the server's memory would be the server's work (over sockets); and it opens that memory
    only when it wants to search for the first time, so that an idle server's clients cost nothing.
    The answers are the same, and mean the same: a search that writers disturb too often is the
    server's after all.
    """

    def __init__(
        self,
        connection: l5.Connection,
        *,
        mode: Mode = "adaptive",
        policy: l5.OffloadPolicy | None = None,
    ) -> None:
        super().__init__(connection)
        self._begin(connection.transport, connection.heartbeat, mode, policy)
        self._paces = Paces()
        self._tree: DirectTree | None = None
        self._given_up: int | None = None
        self._opening = anyio.Lock()

    def __repr__(self) -> str:
        return f"<OffloadingClient {self.mode} over {self.connection!r}>"

    async def aclose(self) -> None:
        """Close the connection, and with it the view of the server's memory."""
        self._tree = None
        await super().aclose()

    async def open(self) -> None:
        """Open the server's memory, which else the first search does that needs it.

        Raises `l5.RemoteAccessError` when the server offers no tree there; closes the connection
        then.
        """
        try:
            await self._open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    async def _open(self) -> DirectTree:
        async with self._opening:
            if self._tree is None:
                try:
                    self._tree = await open_tree(self.connection)
                    self._paces.at_once = self._tree.at_once
                except l5.RemoteAccessError as error:
                    raise no_tree(error) from error
            return self._tree

    # ---- searching -------------------------------------------------------------------------------

    async def search(self, rect: Rect) -> Ids:
        """See `RTreeClient.search`."""
        # What `_choose` and `_served` do, written out: calling them takes as long as deciding.
        began, path, given_up = perf_counter(), _SERVER, None
        if not self._reason:
            sequence = self._heartbeat.sequence
            if sequence != self._heard:
                self._hear(sequence, began)
            path = self._ask_policy(began)
        try:
            if path is _CLIENT:
                found = await self._direct(_search, rect, began)
                if found is not None:
                    return found
                given_up = self._given_up
            try:
                reply = await self._request(pack_rect(SEARCH, *rect))
            except (l5.RequestFailed, struct.error, TypeError) as error:
                raise said_of_search(error, rect) from None
            ids = ids_of(reply)
        except BaseException:
            self._observe(path, NOTHING, perf_counter())
            raise
        now = perf_counter()
        took_s = now - began
        self._server_count += 1
        self._last = took_s if given_up is None else (_SERVER, took_s, given_up, True)
        self._observe(path, took_s, now)
        return ids

    async def count(self, rect: Rect) -> int:
        """See `RTreeClient.count`."""
        return await self._either(_count, lambda: RTreeClient.count(self, rect), rect)

    async def nearest(self, where: Rect, k: int = 1) -> tuple[Ids, Floats]:
        """See `RTreeClient.nearest`."""
        check_k(k)
        rect = place(where)

        async def here(tree: DirectTree, rect: Rect) -> tuple[Ids, Floats]:
            ids, squares = await tree.nearest(rect, k)
            return ids, np.sqrt(squares)

        return await self._either(here, lambda: RTreeClient.nearest(self, where, k), rect)

    async def _either(
        self,
        here: Callable[[DirectTree, Rect], Awaitable[T]],
        ask: Callable[[], Awaitable[T]],
        rect: Rect,
    ) -> T:
        """Search here, or ask the server: also when writers left no time here."""
        began, given_up = perf_counter(), None
        path = self._choose(began)
        try:
            if path is _CLIENT:
                found = await self._direct(here, rect, began)
                if found is not None:
                    return found
                given_up = self._given_up
            answer = await ask()
        except BaseException:
            self._observe(path, NOTHING, perf_counter())
            raise
        self._served(began, path, given_up)
        return answer

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """See `RTreeClient.search_many`; the policy is asked for a part of the batch each time.

        Where it wants some of them here and some there, the server and this client take the batch
        from one end each until they meet, and so end together; and where one of them is so much
        slower that it would be of no use, the other does all.
        """
        return await search_many(self, checked_queries(rects))

    def _note_many(
        self, path: l5.Path, took_s: float, count: int, chosen: dict[l5.Path, int], reads: int = 0
    ) -> None:
        """Tell the policy of a part, which it may have `chosen` for the other path."""
        if count:
            requests = min(count, chosen[path])
            chosen[path] -= requests
            self._observe(path, took_s / count, perf_counter(), reads, requests)

    async def _direct(
        self,
        search: Callable[[DirectTree, Rect], Awaitable[T]],
        rect: Rect,
        began: float,
        searches: int = 1,
        chosen: dict[l5.Path, int] | None = None,
    ) -> T | None:
        """Search here; None: ask the server.

        `_given_up` tells after how many attempts, if writers are why.
        """
        tree = self._tree
        if tree is None:
            tree = await self._reach()
            if tree is None:
                self._given_up = None
                return None
            began = perf_counter()  # it takes so long once: that tells nothing of the next one
        before = tree.retries
        try:
            if len(rect) != 4:
                raise bad_rect(rect)
            found = await search(tree, rect)
        except Disturbed:
            self._disturbed += searches
            self._given_up = tree.retries - before
            return None
        except (struct.error, TypeError):
            raise bad_rect(rect) from None
        except l5.RemoteAccessError as error:
            self._lose(error)
            self._given_up = None
            return None
        now = perf_counter()
        self._client_count += searches
        self._last = (_CLIENT, now - began, tree.retries - before, False)
        if chosen is None:
            self._observe(_CLIENT, now - began, now, tree.reads)
        else:
            self._note_many(_CLIENT, now - began, searches, chosen, tree.reads)
        return found

    def _served(
        self,
        began: float,
        path: l5.Path,
        given_up: int | None,
    ) -> None:
        """Take note of an answer of the server's.

        What was tried here in vain before is a part of what the client's own way takes.
        """
        now = self._note_served(began, given_up, 1)
        self._observe(path, now - began, now)

    async def _reach(self) -> DirectTree | None:
        """Return the tree in the server's memory, if it can be reached."""
        if self._tree is not None:
            return self._tree
        try:
            tree = await self._open()
        except (l5.RemoteAccessError, l5.RemoteProtocolError) as error:
            if self.mode == "client":
                raise
            self._reason = str(error)
            return None
        if self._saves_server and not tree.region.one_sided:
            self._tree = None
            self._reason = not_worth_it(self.connection.transport)
            await tree.region.aclose()
            return None
        return tree


def _search(tree: DirectTree, rect: Rect) -> Awaitable[Ids]:
    return tree.search(rect)


def _count(tree: DirectTree, rect: Rect) -> Awaitable[int]:
    return tree.count(rect)
