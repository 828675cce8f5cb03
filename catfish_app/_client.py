"""`RTreeClient`: an R-tree that another process serves, as async calls."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import numpy.typing as npt

import l5
from catfish_app import _requests, _wire
from catfish_app._pieces import BusyError, IdPieces, translated
from catfish_app._requests import (
    SEARCH,
    ManySearches,
    Mode,
    Rect,
    checked,
    ids_of,
    no_answer,
    pack_rect,
    said_of_search,
)
from catfish_app._rtree import Floats, Ids
from catfish_app._wire import ServiceStats

__all__ = ["BusyError", "IdPieces", "RTreeClient"]


class RTreeClient:
    """A served R-tree: rectangles in, ids out, over any connection of l5.

    Use as ``async with await RTreeClient.connect(url) as tree``, or around a connection that you
    have. Any number of tasks may use one client at once; a cancelled call disturbs no other.

    Rectangles are xmin, ymin, xmax, ymax, closed: edges belong to them. Raises `ValueError` for one
    that is none, naming its row, `l5.RemoteProtocolError` when the server answers nonsense,
    `l5.RequestFailed` for what else goes wrong there, and the errors of `l5.Connection.request`.
    """

    def __init__(self, connection: l5.Connection) -> None:
        self.connection = connection
        self._request: Callable[[bytes], Awaitable[bytes]] = connection.request

    @staticmethod
    async def connect(
        url: str,
        *,
        mode: Mode = "adaptive",
        policy: l5.OffloadPolicy | None = None,
        **options: Any,
    ) -> RTreeClient:
        """Connect to a server; options as for `l5.connect`, errors too.

        `mode` says who searches: ``"adaptive"``, whoever has time, as `policy` decides, which is
        the server where there is no choice; the ``"server"``; or the ``"client"``, in the server's
        memory: see `OffloadingClient`.
        """
        from catfish_app._offloading import OffloadingClient
        from catfish_app._ways import check_mode

        check_mode(mode)
        connection = await l5.connect(url, **options)
        if mode == "server":
            return RTreeClient(connection)
        client = OffloadingClient(connection, mode=mode, policy=policy)
        if mode == "client":
            await client.open()  # so that the reason is told at once
        return client

    async def aclose(self) -> None:
        """Close the connection."""
        await self.connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<RTreeClient over {self.connection!r}>"

    # ---- searching -------------------------------------------------------------------------------

    async def search(self, rect: Rect) -> Ids:
        """Return the ids of all rectangles that meet this one, in no particular order.

        The array is read-only: it is the answer itself.
        """
        try:
            reply = await self._request(pack_rect(SEARCH, *rect))
        except (l5.RequestFailed, struct.error, TypeError) as error:
            raise said_of_search(error, rect) from None
        return ids_of(reply)

    def search_iter(self, rect: Rect) -> IdPieces:
        """Search, and iterate over the ids in pieces as they come.

        Use as ``async with tree.search_iter(rect) as pieces: async for ids in pieces``. The pieces
        together are the answer of one consistent search; leaving early stops the server's sending.
        """
        return IdPieces(self.connection, _requests.search_request(rect))

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids).

        The ids of query i are ids[offsets[i]:offsets[i + 1]]. Each query by itself sees one state
        of the tree.
        """
        many = ManySearches(rects, self.connection.max_message_bytes)
        while (request := many.request()) is not None:
            try:
                many.take(await self._ask(request))
            except (l5.RequestFailed, ValueError) as error:
                many.fail(error)
        return many.found()

    async def count(self, rect: Rect) -> int:
        """Return how many rectangles meet this one."""
        return _requests.number_of(await self._ask(_requests.count_request(rect)))

    async def nearest(self, where: Rect, k: int = 1) -> tuple[Ids, Floats]:
        """Return the ids of the k entries nearest to a point or rectangle, and their distances.

        Nearest first; distance is between the closest points, 0 for what overlaps; equal distances
        come in order of id.
        """
        return _requests.nearest_of(await self._ask(_requests.nearest_request(where, k)), k)

    # ---- changing --------------------------------------------------------------------------------

    async def insert(self, rect: Rect, id: int) -> None:
        """Insert one rectangle; the same one with the same id may be in the tree twice.

        Raises `TreeFull`, also from the other calls that insert: the tree is unchanged then.
        """
        no_answer(await self._ask(_requests.insert_request(rect, id)))

    async def insert_many(self, rects: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """Insert n x 4 rectangles; ids are the row numbers unless given.

        All or none: a bad row (`ValueError`) or a full tree (`TreeFull`) leave none of them
        behind. Other clients may see them arrive one by one.
        """
        rows, numbers = _requests.table(rects, ids)
        limit = self.connection.max_message_bytes
        request = _requests.insert_many_request(rows, numbers, limit)
        if request is None:
            await self.load(rows, numbers)
        else:
            no_answer(await self._ask(request))

    async def delete(self, rect: Rect, id: int) -> bool:
        """Delete one entry that has exactly this rectangle and id; return whether there was one."""
        return bool(_requests.number_of(await self._ask(_requests.delete_request(rect, id))))

    async def update(self, old: Rect, id: int, new: Rect) -> bool:
        """Move one entry to another rectangle; return whether there was one.

        Nobody sees it twice or not at all meanwhile.
        """
        request = _requests.update_request(old, id, new)
        return bool(_requests.number_of(await self._ask(request)))

    async def load(
        self,
        rects: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> bool:
        """Load n x 4 rectangles of any number, sent in parts; ids are the row numbers unless given.

        Nothing is in the tree before all has arrived; then an empty tree is packed, the best
        that there is for searching, and any other gets the rows inserted, all or none. Return
        whether it was packed. `progress` is called with the rows sent and their number. One load at
        a time: `BusyError`.
        """
        rows, numbers = _requests.table(rects, ids)
        token = _requests.number_of(await self._ask(_requests.load_begin(len(rows))))
        try:
            await self._send_rows(token, rows, numbers, progress)
            end = await self._ask(_requests.load_end(token))
        except BaseException:
            await self._abort_load(token)
            raise
        return bool(_requests.number_of(end))

    async def _send_rows(
        self, token: int, rows: Floats, ids: Ids, progress: Callable[[int, int], object] | None
    ) -> None:
        limit = self.connection.max_message_bytes
        for request, sent in _requests.load_parts(token, rows, ids, limit):
            no_answer(await self._ask(request))
            if progress is not None:
                progress(sent, len(rows))
            await anyio.lowlevel.checkpoint()  # a part takes long enough to be the last one

    async def _abort_load(self, token: int) -> None:
        """Let another load begin at once; the server would wait half a minute by itself."""
        with anyio.move_on_after(1.0, shield=True):
            try:
                await self._request(_requests.load_abort(token))
            except (l5.L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # it ended there already, or the connection did: the first error counts

    # ---- asking ----------------------------------------------------------------------------------

    async def bounds(self) -> tuple[float, float, float, float] | None:
        """Return the box of all rectangles; None if there are none."""
        return checked(_wire.unpack_bounds, await self._ask(_requests.BOUNDS))

    async def stats(self, *, walk: bool = True) -> ServiceStats:
        """Return the shape of the tree and how busy the server is; visits every node.

        Without the `walk` the nodes by kind and their fill are 0, and the answer costs nothing.
        """
        return checked(_wire.unpack_stats, await self._ask(_requests.stats_request(walk)))

    async def level_rects(self, level: int) -> Floats:
        """Return the boxes of the nodes of one level (0: leaves) as n x 4.

        They are rounded outwards to single precision. `IndexError` when there is no such level.
        """
        return checked(_wire.unpack_rects, await self._ask(_requests.level_request(level)))

    async def _ask(self, request: bytes) -> bytes:
        try:
            return await self._request(request)
        except l5.RequestFailed as error:
            raise translated(error) from None
