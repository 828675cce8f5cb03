"""Messages over shared memory and sockets, beside the usual ways to pass them between processes.

Goals: M1 requests on asyncio, also against uvloop at its best (M1b, both ends on one processor); M2
on trio; M3 a service in C; M4 one-way bandwidth; M5 beside a busy process; M6 several clients; M6b
many requests of one client at once; M7 an idle pair; M8 sockets through l5; ladder what else a
process may meet (M5b, M5c). Those that begin with "peers" compare with every system that is
installed. What each number means is told in docs/performance.md.

Server and clients are processes of their own; they stay connected while the sides take turns.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from benchmarks._cases import (
    BANDWIDTH,
    CPU,
    FAIRNESS,
    MESSAGES,
    P50,
    P99,
    RATE,
    WAKE_UPS,
    Case,
    Limit,
    Peer,
    Size,
    left_out,
    measure,
)
from benchmarks._harness import REPEATS, ROUNDS, Row
from benchmarks.messaging_peers import ladder, native_echo, side_by_side
from benchmarks.messaging_peers.memory import CHUNK_BYTES
from benchmarks.messaging_peers.pair import Spec, WorkerFailed

MIB = 1 << 20

COUNTS = (1, 2, 4, 8, 16, 32)
FULL = Size(ROUNDS, REPEATS, 0.5, COUNTS, COUNTS, 64 * MIB, 256 * MIB)
QUICK = Size(1, 0, 0.02, (2,), (2,), 4 * MIB, 8 * MIB)


def run(
    quick: bool,
    rounds: int | None = None,
    repeats: int | None = None,
    goal: Sequence[str] | None = None,
    clients: Sequence[int] | None = None,
) -> Iterator[Row]:
    """Measure all cases, or those of the named goals; yield their rows as they are done."""
    size = QUICK if quick else FULL
    given = {"rounds": rounds, "repeats": repeats}
    size = attrs.evolve(size, **{key: value for key, value in given.items() if value is not None})
    if clients:
        size = attrs.evolve(size, clients=tuple(clients), clients_of_peers=tuple(clients))
    wanted = None if goal is None else {name.upper() for name in goal}
    failures: list[WorkerFailed] = []
    for name, cases in CASES.items():
        if wanted is not None and name.upper() not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder:
            try:
                for case in cases(size, folder):
                    yield from measure(case, size, folder)
            except native_echo.Unavailable as reason:
                left_out(name, str(reason))
            except WorkerFailed as failure:
                left_out(f"the rest of {name}", str(failure))
                failures.append(failure)
    if failures:
        raise ExceptionGroup("messaging: not everything could be measured", failures)


# ---- the sides ----

TIMED = ("rate", "times")
UVLOOP = Spec("uvloop streams, unix", "streams", "uvloop", needs=("uvloop",), what=TIMED)
UVLOOP_ONE_CORE = attrs.evolve(UVLOOP, name="uvloop streams, unix, one core", one_core=True)
ASYNCIO = Spec("asyncio streams, unix", "streams", what=TIMED)
TRIO = Spec("trio streams, unix", "trio_streams", "trio", what=TIMED)
ZEROMQ = Spec("pyzmq.asyncio REQ/REP, ipc", "zeromq", needs=("zmq",), what=TIMED)
ICEORYX = Spec("iceoryx2, busy", "iceoryx", needs=("iceoryx2",), what=TIMED)


def shm(name: str = "l5 shm", **kwargs: object) -> Spec:
    return Spec(**{"name": name, "module": "ours", "what": TIMED, **kwargs})  # type: ignore[arg-type]


# ---- the cases ----


def m1(size: Size, folder: str) -> Iterator[Case]:
    goal = "M1"
    peers = [Peer(UVLOOP, goal), Peer(ZEROMQ, goal), Peer(ASYNCIO), Peer(ICEORYX, goal)]
    yield Case("request/asyncio", shm(), peers, (RATE, P50, P99))


def m1b(size: Size, folder: str) -> Iterator[Case]:
    yield Case("request/asyncio", shm(), [Peer(UVLOOP_ONE_CORE, "M1b")], (RATE, P50, P99))


def m2(size: Size, folder: str) -> Iterator[Case]:
    peers = [Peer(UVLOOP, "M2"), Peer(TRIO, "M2")]
    yield Case("request/trio", shm(backend="trio"), peers, (RATE, P50, P99))


def m3(size: Size, folder: str) -> Iterator[Case]:
    ours = shm(options={"library": native_echo.build(folder)})
    peers = [Peer(shm("l5 shm, handler in Python"), "M3"), Peer(UVLOOP)]
    yield Case("request/native", ours, peers, (RATE, P50, P99))


def m4(size: Size, folder: str) -> Iterator[Case]:
    hot = {
        "source_bytes": CHUNK_BYTES,
        "target_bytes": CHUNK_BYTES,
        "transfer_bytes": size.hot_bytes,
    }
    sockets = [
        Spec("uvloop BufferedProtocol, unix", "protocol_bulk", "uvloop", hot, what=("transfer",)),
        Spec("blocking socket, unix", "sockets_bulk", options=hot, what=("transfer",)),
    ]
    for take in ("bytes", "into", "copies", "views"):
        ours = Spec("l5 shm", "ours_bulk", options={**hot, "take": take}, what=("transfer",))
        peers = [Peer(spec, "M4") for spec in sockets]
        yield Case(f"one-way/hot/{take}", ours, peers, (BANDWIDTH,))
    names = ("source_bytes", "target_bytes", "transfer_bytes")
    cold: dict[str, Any] = dict.fromkeys(names, size.cold_bytes)
    for take in ("into", "copies"):
        ours = Spec("l5 shm", "ours_bulk", options={**cold, "take": take}, what=("transfer",))
        peer = Spec("memcpy", "memory", options=cold, what=("transfer",), without_server=True)
        yield Case(f"one-way/cold/{take}", ours, [Peer(peer, "M4")], (BANDWIDTH,))


def m5(size: Size, folder: str) -> Iterator[Case]:
    never = shm("l5 shm, spin_us=0", options={"spin_us": 0})
    yield Case(
        "request/asyncio/beside-hog",
        shm(),
        [Peer(UVLOOP, "M5"), Peer(never, "M5")],
        (RATE, P50, P99),
        hogs=1,
    )
    yield Case(
        "request/asyncio/one-core",
        shm(one_core=True),
        [Peer(UVLOOP_ONE_CORE, "M5"), Peer(attrs.evolve(never, one_core=True), "M5")],
        (RATE, P50, P99),
    )


def m6(size: Size, folder: str) -> Iterator[Case]:
    for clients in size.clients:
        ours = shm(clients=clients, what=("rate",))
        peer = attrs.evolve(UVLOOP, clients=clients, what=("rate",))
        yield Case(f"request/asyncio/{clients}-clients", ours, [Peer(peer, "M6")], (RATE, FAIRNESS))


def m6b(size: Size, folder: str) -> Iterator[Case]:
    def side(name: str, window: int, **options: object) -> Spec:
        return Spec(name, "ours_many", options={"window": window, **options}, what=("transfer",))

    peers = [Peer(side("l5 shm, one at a time", 1), "M6b")]
    yield Case("request-many/asyncio", side("l5 shm, 64 at once", 64), peers, (MESSAGES,))
    library = {"library": native_echo.build(folder)}
    ours = side("l5 shm, 64 at once, handler in C", 64, **library)
    peers = [Peer(side("l5 shm, one at a time, handler in C", 1, **library))]
    yield Case("request-many/native", ours, peers, (MESSAGES,))


def m7(size: Size, folder: str) -> Iterator[Case]:
    limit = Limit("what the goal allows", "M7", {"cpu_percent": 1.0, "wake_ups": 1.0})
    for backend in ("asyncio", "trio"):
        ours = shm(backend=backend, what=("idle",))
        yield Case(f"idle/{backend}", ours, [], (CPU, WAKE_UPS), limit=limit)


def m8(size: Size, folder: str) -> Iterator[Case]:
    for over in ("tcp", "unix"):
        for backend in ("asyncio", "uvloop", "trio"):
            options = {"over": over}
            ours = Spec(
                f"l5 {over}", "ours", backend, {**options, "transports": over}, what=("rate",)
            )
            peer = Spec(f"anyio {over}, framed", "anyio_framed", backend, options, what=("rate",))
            yield Case(f"request/{backend}/{over}", ours, [Peer(peer, "M8")])


CASES: dict[str, Callable[[Size, str], Iterator[Case]]] = {
    "M1": m1,
    "M1b": m1b,
    "M2": m2,
    "M3": m3,
    "M4": m4,
    "M5": m5,
    "M6": m6,
    "M6b": m6b,
    "M7": m7,
    "M8": m8,
    "ladder": ladder.ladder,
    **side_by_side.CASES,
}
