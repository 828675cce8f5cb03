"""What client and server say to each other: one small binary message each way.

A request is a head of eight bytes and a body whose size its operation fixes; all numbers are
little-endian, and so aligned that a server reads them in place:

    op u8 | version u8 | zero u16 | argument u32 | body

    op           argument   body                             answer
    SEARCH       -          rectangle                        ids
    COUNT        -          rectangle                        u64
    NEAREST      k          rectangle                        n ids, n squared distances (doubles)
    SEARCH_MANY  -          n rectangles                     n + 1 offsets (u64), ids
    INSERT       -          rectangle, id                    nothing
    INSERT_MANY  -          n rectangles, n ids              nothing
    DELETE       -          rectangle, id                    u64: 1 deleted, 0 there was none
    UPDATE       -          old rectangle, new one, id       u64: 1 moved, 0 there was none
    BOUNDS       -          nothing                          rectangle, or nothing for an empty tree
    STATS        1: shape   nothing                          see `ServiceStats`
                 not walked
    LEVEL_RECTS  level      nothing                          rectangles
    LOAD_BEGIN   -          u64: how many rows will come     u64: token
    LOAD_PART    -          token, first row, n rectangles,  nothing
                            n ids
    LOAD_END     -          token                            u64: 1 packed, 0 inserted
    LOAD_ABORT   -          token                            nothing

A rectangle is four doubles: xmin, ymin, xmax, ymax. An error is l5's, with the name of a Python
exception: ``ValueError`` (a bad rectangle, with its row; a bad request), ``TreeFull``,
``IndexError`` (no such level), ``BusyError`` (another load is running), ``UnknownLoad`` (no such
load). Nothing here does I/O.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

import attrs
import numpy as np
import numpy.typing as npt

from catfish_app._rtree import Floats, Ids, TreeStats

VERSION = 1
RECT_BYTES = 32
ID_BYTES = 8
HEAD_BYTES = 8

U64 = np.dtype("<u8")
F64 = np.dtype("<f8")


class Op(IntEnum):
    """The operations, by the number that stands for them; zero is none."""

    SEARCH = 1
    COUNT = 2
    NEAREST = 3
    SEARCH_MANY = 4
    INSERT = 5
    INSERT_MANY = 6
    DELETE = 7
    UPDATE = 8
    BOUNDS = 9
    STATS = 10
    LEVEL_RECTS = 11
    LOAD_BEGIN = 12
    LOAD_PART = 13
    LOAD_END = 14
    LOAD_ABORT = 15


STATS_SUMMARY = 1
"""Argument of STATS: leave out what every node would have to be visited for."""

HEAD = struct.Struct("<BBHI")
HEAD_RECT = struct.Struct("<Q4d")
HEAD_RECT_ID = struct.Struct("<Q4dQ")
HEAD_RECTS_ID = struct.Struct("<Q8dQ")
HEAD_NUMBER = struct.Struct("<QQ")
HEAD_NUMBERS = struct.Struct("<QQQ")
_NUMBER = struct.Struct("<Q")
_RECT = struct.Struct("<4d")
COUNTED = ("refused", *(op.name.lower() for op in Op))
"""What is counted: requests that are none of the operations, and each operation."""
# The fields of TreeStats with the number of workers before `arena_bytes`; kernel; connections, busy
# millionths, uptime in ns; the counts.
STATS = struct.Struct(f"<Q6IQ2d16s2IQ{len(COUNTED)}Q")


class ReplyError(Exception):
    """The server's answer is not what the protocol says."""


def head(op: Op, argument: int = 0) -> int:
    """Return the eight bytes of a request's head as one number."""
    return op | VERSION << 8 | argument << 32


@attrs.frozen
class ServiceStats:
    """The shape of a server's tree, and how busy the server is."""

    tree: TreeStats
    kernel: str
    """Which search kernel is in use: portable, avx2 or avx512."""
    workers: int
    """Threads that answer in C; 0: Python in the event loop."""
    connections: int
    busy_share: float
    """Useful time over wall time, mean over the workers, some tenths of a second old (0 to 1)."""
    uptime_s: float
    requests: dict[str, int]
    """How many requests there were, by the operation's name."""


def pack_stats(stats: ServiceStats) -> bytes:
    """Write the answer to STATS."""
    tree = stats.tree
    return STATS.pack(
        tree.entries,
        tree.height,
        tree.leaf_nodes,
        tree.inner_nodes,
        tree.capacity_nodes,
        tree.free_nodes,
        stats.workers,
        tree.arena_bytes,
        tree.leaf_fill,
        tree.inner_fill,
        stats.kernel.encode()[:15],
        stats.connections,
        round(stats.busy_share * 1e6),
        round(stats.uptime_s * 1e9),
        *(stats.requests.get(name, 0) for name in COUNTED),
    )


def unpack_stats(reply: bytes) -> ServiceStats:
    """Read the answer to STATS; `ReplyError`."""
    if len(reply) != STATS.size:
        raise ReplyError(f"{len(reply)} bytes where statistics have {STATS.size}")
    values = STATS.unpack(reply)
    tree = TreeStats(
        entries=values[0],
        height=values[1],
        leaf_nodes=values[2],
        inner_nodes=values[3],
        capacity_nodes=values[4],
        free_nodes=values[5],
        arena_bytes=values[7],
        leaf_fill=values[8],
        inner_fill=values[9],
    )
    return ServiceStats(
        tree=tree,
        kernel=values[10].split(b"\0", 1)[0].decode("ascii", "replace"),
        workers=values[6],
        connections=values[11],
        busy_share=values[12] / 1e6,
        uptime_s=values[13] / 1e9,
        requests={name: n for name, n in zip(COUNTED, values[14:], strict=True) if n},
    )


def unpack_ids(reply: bytes | memoryview) -> Ids:
    """Read ids in place; `ReplyError`."""
    if len(reply) & 7:
        raise ReplyError(f"{len(reply)} bytes where ids of 8 bytes each belong")
    return np.frombuffer(reply, U64)


def unpack_number(reply: bytes) -> int:
    """Read one number; `ReplyError`."""
    if len(reply) != _NUMBER.size:
        raise ReplyError(f"{len(reply)} bytes where one number of 8 bytes belongs")
    return _NUMBER.unpack(reply)[0]


def unpack_nearest(reply: bytes, k: int) -> tuple[Ids, Floats]:
    """Read ids and squared distances; `ReplyError`."""
    count, rest = divmod(len(reply), 16)
    if rest or count > k:
        raise ReplyError(f"{len(reply)} bytes where up to {k} ids and distances belong")
    return np.frombuffer(reply, U64, count), np.frombuffer(reply, F64, count, 8 * count)


def unpack_many(reply: bytes, queries: int) -> tuple[Ids, Ids]:
    """Read the offsets and ids of many searches; `ReplyError`."""
    size = ID_BYTES * (queries + 1)
    if len(reply) < size or len(reply) & 7:
        raise ReplyError(f"{len(reply)} bytes where {queries + 1} offsets and ids belong")
    offsets = np.frombuffer(reply, U64, queries + 1)
    ids = np.frombuffer(reply, U64, offset=size) if len(reply) > size else np.empty(0, U64)
    if offsets[0] != 0 or offsets[-1] != len(ids) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ReplyError("offsets that do not fit the ids")
    return offsets, ids


def unpack_bounds(reply: bytes) -> tuple[float, float, float, float] | None:
    """Read a rectangle, or None; `ReplyError`."""
    if not reply:
        return None
    if len(reply) != _RECT.size:
        raise ReplyError(f"{len(reply)} bytes where a rectangle of 32 bytes belongs")
    return _RECT.unpack(reply)


def unpack_rects(reply: bytes) -> Floats:
    """Read rectangles, n x 4; `ReplyError`."""
    if len(reply) % RECT_BYTES:
        raise ReplyError(f"{len(reply)} bytes where rectangles of 32 bytes each belong")
    return np.frombuffer(reply, F64).reshape(-1, 4)


def rows_bytes(rects: npt.NDArray[np.float64], ids: Ids) -> bytes:
    """Write rectangles and then their ids."""
    return rects.astype(F64, copy=False).tobytes() + ids.astype(U64, copy=False).tobytes()


def join_ids(pieces: Sequence[Ids] | Iterable[Ids]) -> Ids:
    """Join arrays of ids, or return the only one."""
    parts = [piece for piece in pieces if len(piece)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, U64)
