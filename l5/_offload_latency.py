"""`LatencyPolicy`: the state machine in C where there is one, else its model in Python."""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from math import log1p
from typing import TYPE_CHECKING

from . import native
from ._offload import Path
from ._offload_model import LatencyModel

if TYPE_CHECKING or not native.available:
    _Base = LatencyModel
else:
    _Base = native.Latencies
    native.set_paths(Path.SERVER, Path.CLIENT)

_WINDOW_MIN, _WINDOW_MAX = 16, 65536


class LatencyPolicy(_Base):
    """Choose the path with the shorter queue, and try the other one now and then.

    Averages are over the last `window` latencies of each path, without those `outlier` standard
    deviations from the average or further; if more are left out than kept, all are forgotten.
    With the probability `explore` the path that seems worse is taken.  After `stale_s` without a
    request everything is forgotten.  `reads` is how many reads are thought to follow each other in
    a request until `observe` has told.  Heartbeats are not needed.

    `better` is the path that seems better now.  `random` returns numbers from [0, 1).
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        window: int = 100,
        outlier: float = 3.0,
        explore: float = 0.01,
        stale_s: float = 3.0,
        reads: float = 5.0,
        random: Callable[[], float] | None = None,
    ) -> None:
        if not _WINDOW_MIN <= window <= _WINDOW_MAX:
            raise ValueError(
                f"window={window}: expected a number of latencies, {_WINDOW_MIN} to {_WINDOW_MAX}"
            )
        if not outlier > 1.0:
            raise ValueError(f"outlier={outlier}: expected standard deviations, more than 1")
        if not 0.0 < explore < 1.0:
            raise ValueError(f"explore={explore}: expected a probability between 0 and 1")
        if not stale_s > 0.0:
            raise ValueError(f"stale_s={stale_s}: expected seconds, more than 0")
        if not reads >= 1.0:
            raise ValueError(f"reads={reads}: expected a number of reads, at least 1")
        chance = random or _random.Random().random
        super().__init__(chance, window, outlier, log1p(-explore), stale_s, reads)
