"""What a process may meet instead of a machine of its own, and what waiting is worth there.

Each case is `l5` with its usual ladder (spin, yield, sleep) beside `l5` that never spins and beside
uvloop's streams.  `benchmarks.messaging` runs them, as the goal "ladder".
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from benchmarks._cases import P50, P99, RATE, Case, Peer, Size
from benchmarks._harness import Metric
from benchmarks.messaging_peers.pair import Spec

TIMED = ("rate", "times")
OURS = Spec("l5 shm", "ours", what=TIMED)
NEVER = Spec("l5 shm, spin_us=0", "ours", options={"spin_us": 0}, what=TIMED)
UVLOOP = Spec("uvloop streams, unix", "streams", "uvloop", needs=("uvloop",), what=TIMED)

COMPUTING = Metric("computing", "computing thread over alone", "1")
"""How fast the thread beside it is meanwhile: half is fair, for there is one interpreter."""

RUNGS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "one-hog": {"hogs": 1},
    "two-hogs": {"hogs": 2},
    "one-core": {"one_core": True},
    "one-allowed-cpu": {"client_on_one": True},
    "quota-1": {"quota": 1.0},
    "quota-half": {"quota": 0.5},
    "computing-thread": {"beside": "thread", "restless": True},
    "two-connections": {"beside": "connection", "restless": True},
    "one-loop": {"within": True},
}
"""By the name of the case: what is set of `Spec`, and how many hogs are beside it."""


def ladder(size: Size, folder: str) -> Iterator[Case]:
    for name, told in RUNGS.items():
        around = {key: value for key, value in told.items() if key != "hogs"}
        ours, never, uvloop = (attrs.evolve(spec, **around) for spec in (OURS, NEVER, UVLOOP))
        yield Case(
            f"ladder/{name}",
            ours,
            [Peer(never, "ladder"), Peer(uvloop, "ladder")],
            (RATE, P50, P99, *([COMPUTING] if told.get("beside") == "thread" else [])),
            hogs=told.get("hogs", 0),
        )
