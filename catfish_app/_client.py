"""`RTreeClient`: an R-tree that another process serves, as async calls."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt

import l5
from catfish_app import _wire
from catfish_app._pieces import BusyError, IdPieces, distrust, translated
from catfish_app._rtree import Floats, Ids, _ids, _rects
from catfish_app._wire import Op, ReplyError, ServiceStats

__all__ = ["BusyError", "IdPieces", "RTreeClient"]

T = TypeVar("T")
Mode = Literal["adaptive", "server", "client"]
"""Who searches."""
Rect = Sequence[float] | Floats
"""xmin, ymin, xmax, ymax."""

QUERIES_AT_ONCE = 4096
ROWS_AT_ONCE = 8192
NEAREST_MAX = 0xFFFF_FFFF

_SEARCH = _wire.head(Op.SEARCH)
_COUNT = _wire.head(Op.COUNT)
_INSERT = _wire.head(Op.INSERT)
_pack_rect = _wire.HEAD_RECT.pack
_frombuffer = np.frombuffer
_U64 = _wire.U64


def check_k(k: int) -> None:
    """Raise `ValueError` for so many that nobody can ask for them."""
    if not 0 <= k <= NEAREST_MAX:
        raise ValueError(f"k is {k}; it must be from 0 to {NEAREST_MAX}")


def said_of_search(error: Exception, rect: Any) -> Exception:
    """Return what to raise for what happened when the server was asked to search."""
    return translated(error) if isinstance(error, l5.RequestFailed) else _bad_rect(rect)


def ids_of(reply: bytes) -> Ids:
    """Return the ids that a search has found."""
    if len(reply) & 7:
        raise distrust(ReplyError(f"{len(reply)} bytes where ids of 8 bytes each belong"))
    return _frombuffer(reply, _U64)


def _bad_rect(rect: Any) -> ValueError:
    return ValueError(f"a rectangle is four numbers (xmin, ymin, xmax, ymax), not {rect!r}")


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
        from catfish_app._offloading import OffloadingClient, check_mode

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
            reply = await self._request(_pack_rect(_SEARCH, *rect))
        except (l5.RequestFailed, struct.error, TypeError) as error:
            raise said_of_search(error, rect) from None
        return ids_of(reply)

    def search_iter(self, rect: Rect) -> IdPieces:
        """Search, and iterate over the ids in pieces as they come.

        Use as ``async with tree.search_iter(rect) as pieces: async for ids in pieces``. The pieces
        together are the answer of one consistent search; leaving early stops the server's sending.
        """
        return IdPieces(self.connection, self._pack(_SEARCH, rect))

    async def search_many(self, rects: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids).

        The ids of query i are ids[offsets[i]:offsets[i + 1]]. Each query by itself sees one state
        of the tree.
        """
        rows = _rects(rects, "queries")
        offsets = np.zeros(len(rows) + 1, np.uint64)
        pieces: list[Ids] = []
        first, total = 0, 0
        step = min(QUERIES_AT_ONCE, max(1, (self.connection.max_message_bytes - 8) // 32))
        while first < len(rows):
            part = rows[first : first + step]
            try:
                part_offsets, ids = await self._search_part(part, first)
            except l5.RequestFailed as error:
                if error.remote_type != "MessageTooLarge" or step == 1:
                    raise
                step = (len(part) + 1) // 2
                continue
            offsets[first + 1 : first + len(part) + 1] = part_offsets[1:] + np.uint64(total)
            pieces.append(ids)
            total += len(ids)
            first += len(part)
        return offsets, _wire.join_ids(pieces)

    async def _search_part(self, rows: Floats, first: int) -> tuple[Ids, Ids]:
        request = (
            _wire.HEAD.pack(Op.SEARCH_MANY, _wire.VERSION, 0, 0)
            + rows.astype(_wire.F64, copy=False).tobytes()
        )
        try:
            reply = await self._ask(request)
        except ValueError as error:
            raise _renumbered(error, first) from None
        return _checked(lambda: _wire.unpack_many(reply, len(rows)))

    async def count(self, rect: Rect) -> int:
        """Return how many rectangles meet this one."""
        reply = await self._ask(self._pack(_COUNT, rect))
        return _checked(lambda: _wire.unpack_number(reply))

    async def nearest(self, where: Rect, k: int = 1) -> tuple[Ids, Floats]:
        """Return the ids of the k entries nearest to a point or rectangle, and their distances.

        Nearest first; distance is between the closest points, 0 for what overlaps; equal distances
        come in order of id.
        """
        check_k(k)
        rect = (*where, *where) if len(where) == 2 else where
        reply = await self._ask(self._pack(_wire.head(Op.NEAREST, k), rect))
        ids, squares = _checked(lambda: _wire.unpack_nearest(reply, k))
        return ids, np.sqrt(squares)

    # ---- changing --------------------------------------------------------------------------------

    async def insert(self, rect: Rect, id: int) -> None:
        """Insert one rectangle; the same one with the same id may be in the tree twice.

        Raises `TreeFull`, also from the other calls that insert: the tree is unchanged then.
        """
        try:
            request = _wire.HEAD_RECT_ID.pack(_INSERT, *rect, id)
        except (struct.error, TypeError):
            raise _bad_row(rect, id) from None
        _no_answer(await self._ask(request))

    async def insert_many(self, rects: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> None:
        """Insert n x 4 rectangles; ids are the row numbers unless given.

        All or none: a bad row (`ValueError`) or a full tree (`TreeFull`) leave none of them
        behind. Other clients may see them arrive one by one.
        """
        rows, numbers = _table(rects, ids)
        request_bytes = _wire.HEAD_BYTES + len(rows) * (_wire.RECT_BYTES + _wire.ID_BYTES)
        if len(rows) > ROWS_AT_ONCE or request_bytes > self.connection.max_message_bytes:
            await self.load(rows, numbers)
            return
        request = _wire.HEAD.pack(Op.INSERT_MANY, _wire.VERSION, 0, 0)
        _no_answer(await self._ask(request + _wire.rows_bytes(rows, numbers)))

    async def delete(self, rect: Rect, id: int) -> bool:
        """Delete one entry that has exactly this rectangle and id; return whether there was one."""
        try:
            request = _wire.HEAD_RECT_ID.pack(_wire.head(Op.DELETE), *rect, id)
        except (struct.error, TypeError):
            raise _bad_row(rect, id) from None
        reply = await self._ask(request)
        return bool(_checked(lambda: _wire.unpack_number(reply)))

    async def update(self, old: Rect, id: int, new: Rect) -> bool:
        """Move one entry to another rectangle; return whether there was one.

        Nobody sees it twice or not at all meanwhile.
        """
        try:
            request = _wire.HEAD_RECTS_ID.pack(_wire.head(Op.UPDATE), *old, *new, id)
        except (struct.error, TypeError):
            raise _bad_row((*old, *new), id) from None
        reply = await self._ask(request)
        return bool(_checked(lambda: _wire.unpack_number(reply)))

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
        rows, numbers = _table(rects, ids)
        begin = await self._ask(_wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_BEGIN), len(rows)))
        token = _checked(lambda: _wire.unpack_number(begin))
        try:
            await self._send_rows(token, rows, numbers, progress)
            end = await self._ask(_wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_END), token))
        except BaseException:
            await self._abort_load(token)
            raise
        return bool(_checked(lambda: _wire.unpack_number(end)))

    async def _send_rows(
        self, token: int, rows: Floats, ids: Ids, progress: Callable[[int, int], object] | None
    ) -> None:
        room = self.connection.max_message_bytes - _wire.HEAD_NUMBERS.size
        step = max(1, min(ROWS_AT_ONCE, room // (_wire.RECT_BYTES + _wire.ID_BYTES)))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            request = _wire.HEAD_NUMBERS.pack(_wire.head(Op.LOAD_PART), token, first)
            _no_answer(await self._ask(request + _wire.rows_bytes(rows[part], ids[part])))
            if progress is not None:
                progress(min(first + step, len(rows)), len(rows))
            await anyio.lowlevel.checkpoint()  # a part takes long enough to be the last one

    async def _abort_load(self, token: int) -> None:
        """Let another load begin at once; the server would wait half a minute by itself."""
        with anyio.move_on_after(1.0, shield=True):
            try:
                await self._request(_wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_ABORT), token))
            except (l5.L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # it ended there already, or the connection did: the first error counts

    # ---- asking ----------------------------------------------------------------------------------

    async def bounds(self) -> tuple[float, float, float, float] | None:
        """Return the box of all rectangles; None if there are none."""
        reply = await self._ask(_plain(Op.BOUNDS))
        return _checked(lambda: _wire.unpack_bounds(reply))

    async def stats(self, *, walk: bool = True) -> ServiceStats:
        """Return the shape of the tree and how busy the server is; visits every node.

        Without the `walk` the nodes by kind and their fill are 0, and the answer costs nothing.
        """
        reply = await self._ask(_plain(Op.STATS, 0 if walk else _wire.STATS_SUMMARY))
        return _checked(lambda: _wire.unpack_stats(reply))

    async def level_rects(self, level: int) -> Floats:
        """Return the boxes of the nodes of one level (0: leaves) as n x 4.

        They are rounded outwards to single precision. `IndexError` when there is no such level.
        """
        if not 0 <= level <= 0xFFFF_FFFF:
            raise IndexError(f"level is {level}; levels count from 0, the leaves")
        reply = await self._ask(_plain(Op.LEVEL_RECTS, level))
        return _checked(lambda: _wire.unpack_rects(reply))

    async def _ask(self, request: bytes) -> bytes:
        try:
            return await self._request(request)
        except l5.RequestFailed as error:
            raise translated(error) from None

    @staticmethod
    def _pack(head: int, rect: Rect) -> bytes:
        try:
            return _pack_rect(head, *rect)
        except (struct.error, TypeError):
            raise _bad_rect(rect) from None


def _plain(op: Op, argument: int = 0) -> bytes:
    return _wire.HEAD.pack(op, _wire.VERSION, 0, argument)


def _table(rects: npt.ArrayLike, ids: npt.ArrayLike | None) -> tuple[Floats, Ids]:
    rows = _rects(rects)
    numbers = _ids(ids, len(rows))
    return rows, np.arange(len(rows), dtype=np.uint64) if numbers is None else numbers


def _no_answer(reply: bytes) -> None:
    if reply:
        raise distrust(ReplyError(f"{len(reply)} bytes where nothing belongs"))


def _checked(unpack: Callable[[], T]) -> T:
    try:
        return unpack()
    except ReplyError as error:
        raise distrust(error) from None


def _bad_row(rect: Any, id: Any) -> ValueError:
    return ValueError(
        "an entry is a rectangle of four numbers (xmin, ymin, xmax, ymax) and an id from 0 to "
        f"2**64 - 1, not {rect!r} and {id!r}"
    )


def _renumbered(error: ValueError, first: int) -> ValueError:
    """Name the row among all queries: the server knows only those of one request."""
    text = str(error)
    row, colon, rest = text.removeprefix("row ").partition(":")
    if not first or not colon or not row.isdigit():
        return error
    return ValueError(f"row {first + int(row)}:{rest}")
