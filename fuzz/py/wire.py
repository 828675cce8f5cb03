"""What a client of the R-tree makes of a hostile server's answers: ReplyError and nothing else."""

import itertools
from collections.abc import Callable
from typing import Any

from catfish_app import _wire


def one_input(data: bytes) -> None:
    number, reply = (data or b"\0")[0], data[1:]
    readers: list[Callable[[], Any]] = [
        lambda: _wire.unpack_ids(reply),
        lambda: _wire.unpack_number(reply),
        lambda: _wire.unpack_nearest(reply, number),
        lambda: _wire.unpack_bounds(reply),
        lambda: _wire.unpack_rects(reply),
        lambda: _many(reply, number),
        lambda: _stats(reply),
    ]
    for read in readers:
        try:
            read()
        except _wire.ReplyError as error:
            assert str(error)


def _many(reply: bytes, queries: int) -> None:
    offsets, ids = _wire.unpack_many(reply, queries)
    assert len(offsets) == queries + 1 and int(offsets[-1]) == len(ids)
    pieces = [ids[int(a) : int(b)] for a, b in itertools.pairwise(offsets)]
    assert (_wire.join_ids(pieces) == ids).all()


def _stats(reply: bytes) -> None:
    stats = _wire.unpack_stats(reply)
    assert stats.busy_share >= 0 and stats.uptime_s >= 0
    if stats.uptime_s < 1e6 and stats.kernel.isascii() and len(stats.kernel) < 16:
        again = _wire.unpack_stats(_wire.pack_stats(stats))
        assert repr(again) == repr(stats)  # as text, because a fill may be nan
