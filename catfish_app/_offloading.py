"""`OffloadingClient`: an R-tree client that searches by itself, always or when the server is busy.

What changes the tree is always the server's work, and so is what asks for the tree's shape. A
search goes the way that the policy says (`l5.OffloadPolicy`; `l5.BackoffPolicy` unless told
otherwise), which hears the server's heartbeats and how long searches took.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import anyio
import attrs
import numpy as np
import numpy.typing as npt

import l5
from catfish_app._client import Mode, RTreeClient, _bad_rect, check_k
from catfish_app._direct import DirectTree, Disturbed, open_tree
from catfish_app._rtree import Floats, Ids

if TYPE_CHECKING:
    from catfish_app._client import Rect

__all__ = ["OffloadStatistics", "OffloadingClient", "SearchReport", "check_mode"]

T = TypeVar("T")

_SERVER, _CLIENT = l5.Path.SERVER, l5.Path.CLIENT


@attrs.frozen
class SearchReport:
    """How one search went."""

    path: l5.Path
    """Who answered it."""
    latency_s: float
    retries: int
    """Attempts of this client that writers disturbed."""
    disturbed: bool
    """This client gave up, and the server was asked."""


@attrs.frozen
class OffloadStatistics:
    """How the searches of one client went."""

    server: int
    """Searches that the server answered."""
    client: int
    """Searches that this client answered."""
    disturbed: int
    """Searches that this client gave up, which the server then answered."""
    retries: int
    """Attempts that writers disturbed."""
    one_sided: bool | None
    """Whether reads go to the server's memory without the server; None: nothing was read."""
    reason: str
    """Why the client does not search, or not any more; empty if it may."""


def check_mode(mode: str) -> None:
    """Raise `ValueError` for what is no mode."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode is {mode!r}; it can be adaptive, server or client")


class OffloadingClient(RTreeClient):
    """An `RTreeClient` that searches the tree itself, in the server's memory.

    With ``mode="client"`` it always does; `l5.RemoteAccessError` when the server offers no tree for
    that. With ``"adaptive"`` it does what `policy` says, and stays with the server where there is
    no other way: `statistics` tells the reason. The answers are the same, and mean the same: a
    search that writers disturb too often is the server's after all.
    """

    def __init__(
        self,
        connection: l5.Connection,
        *,
        mode: Mode = "adaptive",
        policy: l5.OffloadPolicy | None = None,
    ) -> None:
        check_mode(mode)
        super().__init__(connection)
        self.mode = mode
        pure = {"server": l5.AlwaysServer, "client": l5.AlwaysClient}
        self.policy: l5.OffloadPolicy = policy or pure.get(mode, l5.BackoffPolicy)()
        self._tree: DirectTree | None = None
        self._opening = anyio.Lock()
        self._reason = ""
        self._heard = 0
        self._counts = {_SERVER: 0, _CLIENT: 0}
        self._disturbed = 0
        self._last: tuple[l5.Path, float, int, bool] | None = None

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
                except l5.RemoteAccessError as error:
                    raise l5.RemoteAccessError(
                        f"the server offers no tree to search in its memory ({error}): it has to"
                        " serve an RTree made with shared=True (catfish serve --share)"
                    ) from error
            return self._tree

    # ---- what happened ---------------------------------------------------------------------------

    @property
    def last_search(self) -> SearchReport | None:
        """How the search went that ended last; None before the first."""
        return None if self._last is None else SearchReport(*self._last)

    def statistics(self) -> OffloadStatistics:
        """Return how the searches went so far."""
        tree = self._tree
        return OffloadStatistics(
            server=self._counts[_SERVER],
            client=self._counts[_CLIENT],
            disturbed=self._disturbed,
            retries=0 if tree is None else tree.retries,
            one_sided=None if tree is None else tree.region.one_sided,
            reason=self._reason,
        )

    # ---- searching -------------------------------------------------------------------------------

    async def search(self, rect: Rect) -> Ids:
        """See `RTreeClient.search`."""
        found = await self._direct(lambda tree: tree.search(rect), rect)
        return await self._served(super().search, rect) if found is None else found

    async def count(self, rect: Rect) -> int:
        """See `RTreeClient.count`."""
        found = await self._direct(lambda tree: tree.count(rect), rect)
        return await self._served(super().count, rect) if found is None else found

    async def nearest(self, where: Rect, k: int = 1) -> tuple[Ids, Floats]:
        """See `RTreeClient.nearest`."""
        check_k(k)
        rect = (*where, *where) if len(where) == 2 else where
        found = await self._direct(lambda tree: tree.nearest(rect, k), rect)
        if found is None:
            return await self._served(super().nearest, where, k)
        return found[0], np.sqrt(found[1])

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """See `RTreeClient.search_many`; one decision for all of them."""
        found = await self._direct(lambda tree: tree.search_many(rects), (0, 0, 0, 0))
        return await self._served(super().search_many, rects) if found is None else found

    async def _direct(self, search: Callable[[DirectTree], Awaitable[T]], rect: Rect) -> T | None:
        """Search here if that is to be; None: ask the server."""
        began = perf_counter()
        if self._choose(began) is _SERVER:
            self._last = None
            return None
        tree = await self._reach()
        if tree is None:
            self._last = None
            return None
        if len(rect) != 4:
            raise _bad_rect(rect)
        before = tree.retries
        try:
            found = await search(tree)
        except Disturbed:
            self._disturbed += 1
            self._last = (_SERVER, 0.0, tree.retries - before, True)
            return None
        except (struct.error, TypeError):
            raise _bad_rect(rect) from None
        except l5.RemoteAccessError as error:
            self._lose(error)
            self._last = None
            return None
        now = perf_counter()
        self._counts[_CLIENT] += 1
        self._last = (_CLIENT, now - began, tree.retries - before, False)
        self.policy.observe(_CLIENT, now - began, now, tree.reads)
        return found

    async def _served(self, search: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        given_up = self._last
        began = perf_counter()
        found = await search(*arguments)
        now = perf_counter()
        self._counts[_SERVER] += 1
        retries = 0 if given_up is None else given_up[2]
        self._last = (_SERVER, now - began, retries, given_up is not None)
        self.policy.observe(_SERVER, now - began, now)
        return found

    def _choose(self, now: float) -> l5.Path:
        if self._reason:
            return _SERVER
        heartbeat = self.connection.heartbeat
        sequence = heartbeat.sequence
        if sequence != self._heard:
            self._heard = sequence
            self.policy.heartbeat(heartbeat.busy_share, sequence, now)
        return self.policy.choose(now)

    async def _reach(self) -> DirectTree | None:
        """Return the tree in the server's memory, if it can be reached."""
        if self._tree is not None:
            return self._tree
        try:
            return await self._open()
        except (l5.RemoteAccessError, l5.RemoteProtocolError) as error:
            if self.mode == "client":
                raise
            self._reason = str(error)
            return None

    def _lose(self, error: l5.RemoteAccessError) -> None:
        """The memory is gone: revoked, or with its server."""
        self._tree = None
        if self.mode == "client":
            raise error
        self._reason = str(error)
