"""What clients ask, and what they make of the answers: the same with an event loop and without.

What users pass becomes requests, in bytes; answers are checked and become what users get. Nothing
here does I/O: `RTreeClient` and `catfish_app.blocking.RTreeClient` add the asking.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

import l5
from catfish_app import _wire
from catfish_app._pieces import distrust, translated
from catfish_app._rtree import Floats, Ids, _ids, _rects
from catfish_app._wire import Op, ReplyError

T = TypeVar("T")
P = ParamSpec("P")
Mode = Literal["adaptive", "server", "client"]
"""Who searches."""
Rect = Sequence[float] | Floats
"""xmin, ymin, xmax, ymax."""

QUERIES_AT_ONCE = 4096
ROWS_AT_ONCE = 8192
NEAREST_MAX = 0xFFFF_FFFF
LEVEL_MAX = 0xFFFF_FFFF

SEARCH = _wire.head(Op.SEARCH)
pack_rect = _wire.HEAD_RECT.pack
_COUNT, _INSERT, _DELETE, _UPDATE = map(_wire.head, (Op.COUNT, Op.INSERT, Op.DELETE, Op.UPDATE))


# ---- errors --------------------------------------------------------------------------------------


def bad_rect(rect: Any) -> ValueError:
    return ValueError(f"a rectangle is four numbers (xmin, ymin, xmax, ymax), not {rect!r}")


def _bad_row(rect: Any, id: Any) -> ValueError:
    return ValueError(
        "an entry is a rectangle of four numbers (xmin, ymin, xmax, ymax) and an id from 0 to "
        f"2**64 - 1, not {rect!r} and {id!r}"
    )


def renumbered(error: ValueError, first: int) -> ValueError:
    """Name the row among all queries: the server knows only those of one request."""
    text = str(error)
    row, colon, rest = text.removeprefix("row ").partition(":")
    if not first or not colon or not row.isdigit():
        return error
    return ValueError(f"row {first + int(row)}:{rest}")


def said_of_search(error: Exception, rect: Any) -> Exception:
    """Return what to raise for what happened when the server was asked to search."""
    return translated(error) if isinstance(error, l5.RequestFailed) else bad_rect(rect)


# ---- answers -------------------------------------------------------------------------------------


def ids_of(reply: bytes) -> Ids:
    """Return the ids that a search has found."""
    if len(reply) & 7:
        raise no_ids(reply)
    return np.frombuffer(reply, _wire.U64)


def no_ids(reply: bytes) -> l5.RemoteProtocolError:
    return distrust(ReplyError(f"{len(reply)} bytes where ids of 8 bytes each belong"))


def checked(
    unpack: Callable[Concatenate[bytes, P], T], reply: bytes, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Unpack an answer; `l5.RemoteProtocolError`."""
    try:
        return unpack(reply, *args, **kwargs)
    except ReplyError as error:
        raise distrust(error) from None


def no_answer(reply: bytes) -> None:
    if reply:
        raise distrust(ReplyError(f"{len(reply)} bytes where nothing belongs"))


def number_of(reply: bytes) -> int:
    return checked(_wire.unpack_number, reply)


def nearest_of(reply: bytes, k: int) -> tuple[Ids, Floats]:
    """Return ids and distances."""
    ids, squares = checked(_wire.unpack_nearest, reply, k)
    return ids, np.sqrt(squares)


# ---- requests ------------------------------------------------------------------------------------


def search_request(rect: Rect, head: int = SEARCH) -> bytes:
    try:
        return pack_rect(head, *rect)
    except (struct.error, TypeError):
        raise bad_rect(rect) from None


def count_request(rect: Rect) -> bytes:
    return search_request(rect, _COUNT)


def check_k(k: int) -> None:
    """Raise `ValueError` for so many that nobody can ask for them."""
    if not 0 <= k <= NEAREST_MAX:
        raise ValueError(f"k is {k}; it must be from 0 to {NEAREST_MAX}")


def place(where: Rect) -> Rect:
    """Return the rectangle that a point is, or the rectangle; `ValueError` for anything else."""
    try:
        numbers = tuple(where)
    except TypeError:
        numbers = ()
    if len(numbers) not in (2, 4):
        raise ValueError(
            f"a place is a point (x, y) or a rectangle (xmin, ymin, xmax, ymax), not {where!r}"
        )
    return numbers * 2 if len(numbers) == 2 else numbers


def nearest_request(where: Rect, k: int) -> bytes:
    check_k(k)
    return search_request(place(where), _wire.head(Op.NEAREST, k))


def insert_request(rect: Rect, id: int) -> bytes:
    return _entry_request(_INSERT, rect, id)


def delete_request(rect: Rect, id: int) -> bytes:
    return _entry_request(_DELETE, rect, id)


def _entry_request(head: int, rect: Rect, id: int) -> bytes:
    try:
        return _wire.HEAD_RECT_ID.pack(head, *rect, id)
    except (struct.error, TypeError):
        raise _bad_row(rect, id) from None


def update_request(old: Rect, id: int, new: Rect) -> bytes:
    try:
        return _wire.HEAD_RECTS_ID.pack(_UPDATE, *old, *new, id)
    except (struct.error, TypeError):
        raise _bad_row((*old, *new), id) from None


def table(rects: npt.ArrayLike, ids: npt.ArrayLike | None) -> tuple[Floats, Ids]:
    """Return rows and their ids, which are their numbers unless given."""
    rows = _rects(rects)
    numbers = _ids(ids, len(rows))
    return rows, np.arange(len(rows), dtype=np.uint64) if numbers is None else numbers


def insert_many_request(rows: Floats, numbers: Ids, max_message_bytes: int) -> bytes | None:
    """Return one request that inserts a table; None: it is too large, and to be loaded."""
    request_bytes = _wire.HEAD_BYTES + len(rows) * (_wire.RECT_BYTES + _wire.ID_BYTES)
    if len(rows) > ROWS_AT_ONCE or request_bytes > max_message_bytes:
        return None
    return _plain(Op.INSERT_MANY) + _wire.rows_bytes(rows, numbers)


def load_begin(count: int) -> bytes:
    return _wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_BEGIN), count)


def load_parts(
    token: int, rows: Floats, ids: Ids, max_message_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yield the requests that send a table, with how many rows are sent after each."""
    room = max_message_bytes - _wire.HEAD_NUMBERS.size
    step = max(1, min(ROWS_AT_ONCE, room // (_wire.RECT_BYTES + _wire.ID_BYTES)))
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        request = _wire.HEAD_NUMBERS.pack(_wire.head(Op.LOAD_PART), token, first)
        request += _wire.rows_bytes(rows[part], ids[part])
        yield request, min(first + step, len(rows))


def load_end(token: int) -> bytes:
    return _wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_END), token)


def load_abort(token: int) -> bytes:
    return _wire.HEAD_NUMBER.pack(_wire.head(Op.LOAD_ABORT), token)


BOUNDS = _wire.HEAD.pack(Op.BOUNDS, _wire.VERSION, 0, 0)


def stats_request(walk: bool) -> bytes:
    return _plain(Op.STATS, 0 if walk else _wire.STATS_SUMMARY)


def level_request(level: int) -> bytes:
    if not 0 <= level <= LEVEL_MAX:
        raise IndexError(f"level is {level}; levels count from 0, the leaves")
    return _plain(Op.LEVEL_RECTS, level)


def _plain(op: Op, argument: int = 0) -> bytes:
    return _wire.HEAD.pack(op, _wire.VERSION, 0, argument)


class ManySearches:
    """`search_many` as requests, cut smaller where an answer would be over the limit.

    while (request := many.request()) is not None:
        try: many.take(ask(request))
        except (l5.RequestFailed, ValueError) as error: many.fail(error)
    offsets, ids = many.found()
    """

    def __init__(self, rects: npt.ArrayLike, max_message_bytes: int) -> None:
        self._rows = _rects(rects, "queries")
        self._offsets = np.zeros(len(self._rows) + 1, np.uint64)
        self._pieces: list[Ids] = []
        self._first = self._total = 0
        self._step = min(QUERIES_AT_ONCE, max(1, (max_message_bytes - 8) // 32))
        self._part: Floats = self._rows[:0]

    def request(self) -> bytes | None:
        """Return what to ask next; None: that was all."""
        if self._first >= len(self._rows):
            return None
        self._part = self._rows[self._first : self._first + self._step]
        return _plain(Op.SEARCH_MANY) + self._part.astype(_wire.F64, copy=False).tobytes()

    def take(self, reply: bytes) -> None:
        """Take the answer."""
        count, first = len(self._part), self._first
        offsets, ids = checked(_wire.unpack_many, reply, count)
        self._offsets[first + 1 : first + count + 1] = offsets[1:] + np.uint64(self._total)
        self._pieces.append(ids)
        self._total += len(ids)
        self._first += count

    def fail(self, error: Exception) -> None:
        """Make parts smaller if that helps; else raise what the caller is to know."""
        if isinstance(error, ValueError):
            raise renumbered(error, self._first) from None
        too_large = isinstance(error, l5.RequestFailed) and error.remote_type == "MessageTooLarge"
        if not too_large or self._step == 1:
            raise error
        self._step = (len(self._part) + 1) // 2

    def found(self) -> tuple[Ids, Ids]:
        """Return offsets and ids of all."""
        return self._offsets, _wire.join_ids(self._pieces)
