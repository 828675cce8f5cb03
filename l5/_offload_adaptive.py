"""`AdaptivePolicy`: the state machine in C where there is one, else its model in Python."""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import native
from ._adaptive_model import AdaptiveModel
from ._offload import Path, seconds_of, share_of

if TYPE_CHECKING or not native.available:
    _Base = AdaptiveModel
else:
    _Base = native.Adaptive
    native.set_paths(Path.SERVER, Path.CLIENT)


class AdaptivePolicy(_Base):
    """Let the server work while it has time and is the shorter way, and share the work when not.

    * Where the client's own way is the shorter one, empty and as it is now, it is taken, whatever
      the server says: in memory of one host, for instance.  So it is where the server takes four
      times as long, busy or not.
    * Else the server gets a part of the requests, `server_share`, 1 in the beginning.  A heartbeat
      over `threshold` takes some of it away if the client's own way would take less than twice as
      long, one below lets some return, and so does silence: as with `BackoffPolicy`, whose
      arguments these are.
    * While the server does not answer at all, for longer than both ways together usually take,
      further requests stay with the client.

    The way that is not taken is tried so rarely that it costs about the part `explore` of the time;
    after `stale_s` without a request all is forgotten.  The client's own way is first tried
    after 64 requests, or when the server says that it is busy.

    `server_s` and `client_s` tell what requests take on average, `outstanding` how many are under
    way.  `random` returns numbers from [0, 1).
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        n: int = 8,
        threshold: float = 0.95,
        interval_s: float = 0.010,
        explore: float = 0.01,
        stale_s: float = 3.0,
        random: Callable[[], float] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"n={n}: expected the part of the requests of a round, at least 1")
        if not 0.0 < explore < 1.0:
            raise ValueError(f"explore={explore}: expected a part of the time, between 0 and 1")
        super().__init__(
            random or _random.Random().random,
            n,
            share_of("threshold", threshold),
            seconds_of("interval_s", interval_s),
            explore,
            seconds_of("stale_s", stale_s),
        )
