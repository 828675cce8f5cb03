"""Requests without an event loop: `l5.blocking` beside what blocks as well.

Twice: as it comes, and never spinning (`spin_us=0`), where both ends sleep for every message as the
others do. `l5` on asyncio is among the peers of the first, for the price of the loop.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks import _report
from benchmarks._harness import REPEATS, ROUNDS, Metric, Row, Watch, compare, take_turns
from benchmarks.messaging_peers.pair import Pair, Spec

METRICS = (
    Metric("rate", "round trips", "1/s"),
    Metric("p50_us", "p50", "us"),
    Metric("p99_us", "p99", "us"),
)
TIMED = ("rate", "times")

SOCKET = Spec("blocking socket, unix", "sockets_blocking", what=TIMED)
OTHERS = (
    SOCKET,
    Spec("multiprocessing.Connection, unix", "multiprocessing_blocking", what=TIMED),
    Spec("pyzmq REQ/REP, ipc, blocking", "zeromq_blocking", needs=("zmq",), what=TIMED),
)
ASYNC = Spec("l5 shm, asyncio", "ours", what=TIMED)

CASES = {
    "request/blocking": (Spec("l5.blocking shm", "ours_blocking", what=TIMED), (*OTHERS, ASYNC)),
    "request/blocking/asleep": (
        Spec("l5.blocking shm, asleep", "ours_blocking", options={"spin_us": 0}, what=TIMED),
        OTHERS,
    ),
    "request/blocking/unix": (
        Spec("l5.blocking unix", "ours_blocking", options={"transports": "unix"}, what=TIMED),
        OTHERS,
    ),
}


def run(quick: bool, rounds: int | None = None, repeats: int | None = None) -> Iterator[Row]:
    """Measure each case, and yield its rows."""
    turns = rounds or (1 if quick else ROUNDS)
    again = repeats if repeats is not None else (0 if quick else REPEATS)
    with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder:
        for case, (ours, others) in CASES.items():
            specs = [ours, *(spec for spec in others if not spec.missing)]
            _report.begin(case, turns * len(specs))
            with ExitStack() as stack:
                pairs = [
                    stack.enter_context(Pair(spec, folder, 0.02 if quick else 0.5))
                    for spec in specs
                ]
                done = take_turns(
                    pairs,
                    turns,
                    repeats=again,
                    watch=lambda: Watch(lambda: [pid for pair in pairs for pid in pair.pids()]),  # noqa: B023
                    on_measured=_report.advance,
                )
            names = [spec.name for spec in specs[1:]]
            yield from compare(case, [None] * len(names), METRICS, names, done)
