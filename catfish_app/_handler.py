"""The service in Python: the same answers as `native/service_handler.c`, one request at a time.

It is the reference that the C handler is tested against, and serves where native services cannot be
had. The tests send both the same bytes.
"""

import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable

import attrs
import numpy as np

import l5
from catfish_app import _wire
from catfish_app._kernels import TreeFull, ffi, lib
from catfish_app._rtree import Floats, Ids, RTree, _explain, _raise_for_rows
from catfish_app._wire import Op, ServiceStats

_ROW = struct.Struct("<4dQ")
LOAD_IDLE_S = 30.0
"""After so long without a part, a load makes room for another one."""


class UnknownLoad(LookupError):
    """There is no such load, or it was idle so long that another one took its place."""


class BusyError(RuntimeError):
    """Another load is running; try again later."""


EXPECTED = (ValueError, IndexError, TreeFull, UnknownLoad, BusyError)


@attrs.define(eq=False)
class _Load:
    """Rows that have come for a bulk load."""

    token: int
    total: int
    rects: Floats
    ids: Ids
    count: int = 0
    used_at: float = 0.0


class TreeHandler:
    """Answers requests for one tree: ``l5.serve(TreeHandler(tree), url)``."""

    def __init__(self, tree: RTree) -> None:
        self.tree = tree
        self.busy_share = 0.0
        self.connections = 0
        self.useful_ns = 0
        self._started = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._load: _Load | None = None
        self._operations: dict[int, Callable[[int, bytes], bytes]] = {
            op: getattr(self, f"_{op.name.lower()}") for op in Op
        }

    def __call__(self, request: bytes) -> bytes:
        """Answer one request; raises `l5.HandlerError` with what the client shall see."""
        began = time.perf_counter_ns()
        try:
            return self._answer(request)
        except EXPECTED as error:
            raise l5.HandlerError(type(error).__name__, str(error)) from None
        finally:
            self.useful_ns += time.perf_counter_ns() - began

    def _answer(self, request: bytes) -> bytes:
        if len(request) < _wire.HEAD_BYTES:
            self._counts["refused"] += 1
            raise ValueError(f"a request has at least 8 bytes, this one has {len(request)}")
        op, version, zero, argument = _wire.HEAD.unpack_from(request)
        operation = self._operations.get(op)
        if version != _wire.VERSION or zero or operation is None:
            self._counts["refused"] += 1
            raise ValueError(
                f"operation {op} of version {version} is not known; this server speaks version "
                f"{_wire.VERSION}"
            )
        self._counts[_wire.COUNTED[op]] += 1
        return operation(argument, request[_wire.HEAD_BYTES :])

    def counts(self) -> dict[str, int]:
        """Return how many requests there were, by the operation's name."""
        return {name: self._counts[name] for name in _wire.COUNTED}

    # ---- searching -------------------------------------------------------------------------------

    def _search(self, _: int, body: bytes) -> bytes:
        [rect] = _queries(body, 1)
        return np.array(self.tree.search(*rect.tolist()), _wire.U64).tobytes()

    def _count(self, _: int, body: bytes) -> bytes:
        [rect] = _queries(body, 1)
        return self.tree.count(*rect.tolist()).to_bytes(8, "little")

    def _nearest(self, argument: int, body: bytes) -> bytes:
        [rect] = _queries(body, 1)
        reason = _explain(rect, query=False)
        if reason:
            raise ValueError(f"not a valid rectangle: {reason}")
        room = min(argument, len(self.tree))
        ids, distances = np.empty(room, _wire.U64), np.empty(room, _wire.F64)
        found = ffi.new("size_t *")
        lib.rt_nearest(
            ffi.cast("struct rtree *", self.tree.address),
            ffi.from_buffer("double[]", rect.tobytes()),
            room,
            ffi.cast("uint64_t *", ids.ctypes.data),
            ffi.cast("double *", distances.ctypes.data),
            found,
        )
        return ids[: found[0]].tobytes() + distances[: found[0]].tobytes()

    def _search_many(self, _: int, body: bytes) -> bytes:
        count, rest = divmod(len(body), _wire.RECT_BYTES)
        _size_is_right(not rest, body)
        offsets, ids = self.tree.search_many(_queries(body, count))
        return offsets.astype(_wire.U64).tobytes() + ids.astype(_wire.U64).tobytes()

    # ---- changing --------------------------------------------------------------------------------

    def _insert(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == _ROW.size, body)
        self.tree.insert(*_ROW.unpack(body))
        return b""

    def _insert_many(self, _: int, body: bytes) -> bytes:
        self.tree.insert_many(*_rows(body))
        return b""

    def _delete(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == _ROW.size, body)
        return int(self.tree.delete(*_ROW.unpack(body))).to_bytes(8, "little")

    def _update(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == 2 * _wire.RECT_BYTES + _wire.ID_BYTES, body)
        old, new = _rects(body[: 2 * _wire.RECT_BYTES], 2)
        id = int.from_bytes(body[2 * _wire.RECT_BYTES :], "little")
        return int(self.tree.update(old.tolist(), id, new.tolist())).to_bytes(8, "little")

    # ---- asking ----------------------------------------------------------------------------------

    def _bounds(self, _: int, body: bytes) -> bytes:
        _size_is_right(not body, body)
        bounds = self.tree.bounds
        return b"" if bounds is None else np.array(bounds, _wire.F64).tobytes()

    def _stats(self, argument: int, body: bytes) -> bytes:
        _size_is_right(not body, body)
        return _wire.pack_stats(
            ServiceStats(
                tree=self.tree.stats(walk=argument != _wire.STATS_SUMMARY),
                kernel=self.tree.kernel,
                workers=0,
                connections=self.connections,
                busy_share=self.busy_share,
                uptime_s=time.monotonic() - self._started,
                requests=dict(self._counts),
            )
        )

    def _level_rects(self, argument: int, body: bytes) -> bytes:
        _size_is_right(not body, body)
        return self.tree.level_rects(argument).astype(_wire.F64).tobytes()

    # ---- loading ---------------------------------------------------------------------------------

    def _load_begin(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == 8, body)
        total = int.from_bytes(body, "little")
        most = self.tree.stats().capacity_nodes * lib.RT_LEAF_MAX
        if total > most:
            raise TreeFull(f"{total} rows do not fit: the tree has room for at most {most}")
        now = time.monotonic()
        if self._load is not None and now - self._load.used_at < LOAD_IDLE_S:
            raise BusyError("another load is running; try again when it has ended")
        token = secrets.randbits(64)
        self._load = _Load(
            token, total, np.empty((total, 4)), np.empty(total, _wire.U64), used_at=now
        )
        return token.to_bytes(8, "little")

    def _find_load(self, body: bytes) -> _Load:
        if self._load is None or self._load.token != int.from_bytes(body[:8], "little"):
            raise UnknownLoad("there is no such load; it may have been idle for too long")
        return self._load

    def _load_part(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) >= 16, body)
        first = int.from_bytes(body[8:16], "little")
        rects, ids = _rows(body[16:], body)
        _check_rows(rects, first)
        load = self._find_load(body)
        if first != load.count or len(ids) > load.total - load.count:
            raise ValueError(
                f"rows {first} to {first + len(ids)} do not follow on {load.count} of {load.total}"
            )
        load.rects[first : first + len(ids)] = rects
        load.ids[first : first + len(ids)] = ids
        load.count += len(ids)
        load.used_at = time.monotonic()
        return b""

    def _load_end(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == 8, body)
        load = self._find_load(body)
        self._load = None
        if load.count != load.total:
            raise ValueError(f"only {load.count} of {load.total} rows have come")
        if len(self.tree):
            self.tree.insert_many(load.rects, load.ids)
            return (0).to_bytes(8, "little")
        bulk_load(self.tree, load.rects, load.ids)
        return (1).to_bytes(8, "little")

    def _load_abort(self, _: int, body: bytes) -> bytes:
        _size_is_right(len(body) == 8, body)
        self._find_load(body)
        self._load = None
        return b""


def bulk_load(tree: RTree, rects: Floats, ids: Ids) -> None:
    """Load an empty tree, packed; `ValueError` and `TreeFull` as `RTree.insert_many`."""
    bad_row = ffi.new("size_t *")
    error = lib.rt_bulk_load(
        ffi.cast("struct rtree *", tree.address),
        ffi.cast("double *", rects.ctypes.data),
        ffi.cast("uint64_t *", ids.ctypes.data),
        len(ids),
        1.0,
        bad_row,
    )
    _raise_for_rows(error, tree, rects, bad_row[0])


def _size_is_right(right: bool, body: bytes) -> None:
    if not right:
        raise ValueError(f"a body of {len(body)} bytes does not fit this operation")


def _rects(body: bytes, count: int) -> Floats:
    """Read rectangles that can be stored; the first bad one is an error that names its row."""
    rects = _queries(body, count)
    _check_rows(rects)
    return rects


def _queries(body: bytes, count: int) -> Floats:
    _size_is_right(len(body) == count * _wire.RECT_BYTES, body)
    return np.frombuffer(body, _wire.F64).reshape(-1, 4).astype(np.float64)


def _rows(body: bytes, whole: bytes | None = None) -> tuple[Floats, Ids]:
    """Read n rectangles and then n ids, which may be the end of a `whole` body."""
    count, rest = divmod(len(body), _wire.RECT_BYTES + _wire.ID_BYTES)
    _size_is_right(not rest, body if whole is None else whole)
    split = count * _wire.RECT_BYTES
    ids = np.frombuffer(body, _wire.U64, offset=split) if count else np.empty(0, _wire.U64)
    return _queries(body[:split], count), ids.astype(np.uint64)


def _check_rows(rects: Floats, first: int = 0) -> None:
    good = np.isfinite(rects).all(axis=1) & (rects[:, :2] <= rects[:, 2:]).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        reason = _explain(rects[row], query=False)
        raise ValueError(f"row {first + row}: not a valid rectangle: {reason}")
