"""`RTreeClient`: an R-tree that another process serves, as plain calls."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import numpy as np
import numpy.typing as npt

import l5
import l5.blocking
from catfish_app import _requests, _wire
from catfish_app._pieces import translated
from catfish_app._requests import (
    SEARCH,
    ManySearches,
    Mode,
    Rect,
    checked,
    no_answer,
    no_ids,
    pack_rect,
    said_of_search,
)
from catfish_app._rtree import Floats, Ids
from catfish_app._ways import check_mode
from catfish_app._wire import ServiceStats
from catfish_app.blocking._pieces import IdPieces, expiry, left

__all__ = ["IdPieces", "RTreeClient", "connect"]

ABORT_S = 1.0

_frombuffer = np.frombuffer
_U64 = _wire.U64


def connect(
    url: str,
    *,
    mode: Mode = "adaptive",
    policy: l5.OffloadPolicy | None = None,
    **options: Any,
) -> RTreeClient:
    """Connect to a server; options and errors as for `l5.blocking.connect`.

    `mode` says who searches: ``"adaptive"``, whoever has time, as `policy` decides, which is the
    server where there is no choice; the ``"server"``; or the ``"client"``, in the server's memory,
    which has to be mapped here (one host): see `OffloadingClient`. Raises `ValueError` for another
    mode, `l5.RemoteAccessError` where ``"client"`` cannot be.
    """
    from catfish_app.blocking._offloading import OffloadingClient

    check_mode(mode)
    connection = l5.blocking.connect(url, **options)
    if mode == "server":
        return RTreeClient(connection)
    client = OffloadingClient(connection, mode=mode, policy=policy)
    if mode == "client":
        client.open()  # so that the reason is told at once
    return client


class RTreeClient:
    """A served R-tree: rectangles in, ids out, over any connection of `l5.blocking`.

    Use as ``with connect(url) as tree``, or around a connection that you have. Any number of
    threads may use one client at once; a call that is late or interrupted disturbs no other.

    Calls, answers and errors are those of `catfish_app.RTreeClient`, without ``await``. Each call
    takes a `timeout` in seconds for all that it does (None: for ever; 0: only look) and raises
    `TimeoutError` when that is over; a change of the tree may have been carried out then.
    """

    connect = staticmethod(connect)

    def __init__(self, connection: l5.blocking.Connection) -> None:
        self.connection = connection
        self._request = connection.request

    def close(self) -> None:
        """Close the connection; calls that wait in other threads fail."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RTreeClient over {self.connection!r}>"

    # ---- searching -------------------------------------------------------------------------------

    def search(self, rect: Rect, *, timeout: float | None = None) -> Ids:
        """Return the ids of all rectangles that meet this one, in no particular order.

        The array is read-only: it is the answer itself.
        """
        try:
            reply = self._request(pack_rect(SEARCH, *rect), timeout=timeout)
        except (l5.RequestFailed, struct.error, TypeError) as error:
            raise said_of_search(error, rect) from None
        if len(reply) & 7:  # here and not in a function: this is all that a search costs
            raise no_ids(reply)
        return _frombuffer(reply, _U64)

    def search_iter(self, rect: Rect, *, timeout: float | None = None) -> IdPieces:
        """Search, and iterate over the ids in pieces as they come; `timeout` is for each.

        Use as ``with tree.search_iter(rect) as pieces: for ids in pieces``. The pieces together are
        the answer of one consistent search; leaving early stops the server's sending.
        """
        return IdPieces(self.connection, _requests.search_request(rect), timeout)

    def search_many(self, rects: npt.ArrayLike, *, timeout: float | None = None) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids).

        The ids of query i are ids[offsets[i]:offsets[i + 1]]. Each query by itself sees one state
        of the tree.
        """
        expires = expiry(timeout)
        many = ManySearches(rects, self.connection.max_message_bytes)
        while (request := many.request()) is not None:
            try:
                many.take(self._ask(request, left(expires)))
            except (l5.RequestFailed, ValueError) as error:
                many.fail(error)
        return many.found()

    def count(self, rect: Rect, *, timeout: float | None = None) -> int:
        """Return how many rectangles meet this one."""
        return _requests.number_of(self._ask(_requests.count_request(rect), timeout))

    def nearest(
        self, where: Rect, k: int = 1, *, timeout: float | None = None
    ) -> tuple[Ids, Floats]:
        """Return the ids of the k entries nearest to a point or rectangle, and their distances.

        Nearest first; distance is between the closest points, 0 for what overlaps; equal distances
        come in order of id.
        """
        return _requests.nearest_of(self._ask(_requests.nearest_request(where, k), timeout), k)

    # ---- changing --------------------------------------------------------------------------------

    def insert(self, rect: Rect, id: int, *, timeout: float | None = None) -> None:
        """Insert one rectangle; the same one with the same id may be in the tree twice.

        Raises `TreeFull`, also from the other calls that insert: the tree is unchanged then.
        """
        no_answer(self._ask(_requests.insert_request(rect, id), timeout))

    def insert_many(
        self,
        rects: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Insert n x 4 rectangles; ids are the row numbers unless given.

        All or none: a bad row (`ValueError`) or a full tree (`TreeFull`) leave none of them
        behind. Other clients may see them arrive one by one.
        """
        rows, numbers = _requests.table(rects, ids)
        limit = self.connection.max_message_bytes
        request = _requests.insert_many_request(rows, numbers, limit)
        if request is None:
            self.load(rows, numbers, timeout=timeout)
        else:
            no_answer(self._ask(request, timeout))

    def delete(self, rect: Rect, id: int, *, timeout: float | None = None) -> bool:
        """Delete one entry that has exactly this rectangle and id; return whether there was one."""
        return bool(_requests.number_of(self._ask(_requests.delete_request(rect, id), timeout)))

    def update(self, old: Rect, id: int, new: Rect, *, timeout: float | None = None) -> bool:
        """Move one entry to another rectangle; return whether there was one.

        Nobody sees it twice or not at all meanwhile.
        """
        request = _requests.update_request(old, id, new)
        return bool(_requests.number_of(self._ask(request, timeout)))

    def load(
        self,
        rects: npt.ArrayLike,
        ids: npt.ArrayLike | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Load n x 4 rectangles of any number, sent in parts; ids are the row numbers unless given.

        Nothing is in the tree before all has arrived; then an empty tree is packed, the best
        that there is for searching, and any other gets the rows inserted, all or none. Return
        whether it was packed. `progress` is called with the rows sent and their number. One load at
        a time: `BusyError`.
        """
        expires = expiry(timeout)
        rows, numbers = _requests.table(rects, ids)
        begin = self._ask(_requests.load_begin(len(rows)), left(expires))
        token = _requests.number_of(begin)
        limit = self.connection.max_message_bytes
        try:
            for request, sent in _requests.load_parts(token, rows, numbers, limit):
                no_answer(self._ask(request, left(expires)))
                if progress is not None:
                    progress(sent, len(rows))
            end = self._ask(_requests.load_end(token), left(expires))
        except BaseException:
            self._abort_load(token)
            raise
        return bool(_requests.number_of(end))

    def _abort_load(self, token: int) -> None:
        """Let another load begin at once; the server would wait half a minute by itself."""
        try:
            self._request(_requests.load_abort(token), timeout=ABORT_S)
        except (l5.L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
            pass  # it ended there already, or the connection did: the first error counts

    # ---- asking ----------------------------------------------------------------------------------

    def bounds(self, *, timeout: float | None = None) -> tuple[float, float, float, float] | None:
        """Return the box of all rectangles; None if there are none."""
        return checked(_wire.unpack_bounds, self._ask(_requests.BOUNDS, timeout))

    def stats(self, *, walk: bool = True, timeout: float | None = None) -> ServiceStats:
        """Return the shape of the tree and how busy the server is; visits every node.

        Without the `walk` the nodes by kind and their fill are 0, and the answer costs nothing.
        """
        return checked(_wire.unpack_stats, self._ask(_requests.stats_request(walk), timeout))

    def level_rects(self, level: int, *, timeout: float | None = None) -> Floats:
        """Return the boxes of the nodes of one level (0: leaves) as n x 4.

        They are rounded outwards to single precision. `IndexError` when there is no such level.
        """
        return checked(_wire.unpack_rects, self._ask(_requests.level_request(level), timeout))

    def _ask(self, request: bytes, timeout: float | None) -> bytes:
        try:
            return self._request(request, timeout=timeout)
        except l5.RequestFailed as error:
            raise translated(error) from None
