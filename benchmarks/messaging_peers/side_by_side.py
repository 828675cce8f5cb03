"""Every system side by side, each in the form that its own documentation recommends.

Which sides there are; `benchmarks.messaging` runs the cases, under goals that begin with "peers".
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from benchmarks._cases import (
    BANDWIDTH,
    CPU,
    CPU_OF_REQUESTS,
    FAIRNESS,
    P50,
    P99,
    P999,
    RATE,
    WAKE_UPS,
    Case,
    Peer,
    Size,
)
from benchmarks.messaging_peers.memory import CHUNK_BYTES
from benchmarks.messaging_peers.pair import Spec

BLOCKING_BULK = "messages_blocking_bulk"

OURS = Spec("l5 shm, asyncio", "ours")
"""Compared with all others; the other ways to use `l5` are among those."""

WAYS = (
    Spec("l5 shm, trio", "ours", "trio"),
    Spec("l5.blocking shm", "ours_blocking"),
    Spec("l5 unix, asyncio", "ours", options={"transports": "unix"}),
)
UVLOOP = Spec("uvloop streams, unix", "streams", "uvloop")
ASYNCIO = Spec("asyncio streams, unix", "streams")
ZEROMQ = Spec("pyzmq.asyncio REQ/REP, ipc", "zeromq", needs=("zmq",))
ZEROMQ_BLOCKING = Spec("pyzmq REQ/REP, ipc, blocking", "zeromq_blocking", needs=("zmq",))
NNG = Spec("pynng Req0/Rep0, ipc, asyncio", "nng", needs=("pynng",))
GRPC = Spec("grpc.aio unary, unix", "grpc_aio", needs=("grpc",))
REDIS = Spec(
    "redis.asyncio ECHO, unix",
    "redis_aio",
    needs=("redis", "hiredis"),
    programs=("redis-server",),
)
ICEORYX = Spec("iceoryx2, busy", "iceoryx", needs=("iceoryx2",))
OTHERS = (
    UVLOOP,
    ASYNCIO,
    Spec("trio streams, unix", "trio_streams", "trio"),
    Spec("anyio on asyncio, framed, unix", "anyio_framed", options={"over": "unix"}),
    Spec("anyio on trio, framed, unix", "anyio_framed", "trio", options={"over": "unix"}),
    Spec("blocking socket, unix", "sockets_blocking"),
    Spec("multiprocessing.Connection, unix", "multiprocessing_blocking"),
    ZEROMQ,
    ZEROMQ_BLOCKING,
    NNG,
    Spec("pynng Req0/Rep0, ipc, blocking", "nng_blocking", needs=("pynng",)),
    GRPC,
    REDIS,
    ICEORYX,
    Spec("ucxx, polling, asyncio", "ucxx_aio", needs=("ucxx",), restless=True),
    Spec("iceoryx2, event", "iceoryx_event", needs=("iceoryx2",)),
)
WITH_MANY_CLIENTS = (*WAYS, UVLOOP, ASYNCIO, ZEROMQ, ZEROMQ_BLOCKING, NNG, GRPC, REDIS, ICEORYX)


def peers(specs: Sequence[Spec], **changes: object) -> list[Peer]:
    return [
        Peer(attrs.evolve(spec, **changes), foreign=not spec.module.startswith("ours"))
        for spec in specs
    ]


def one_client(size: Size, folder: str) -> Iterator[Case]:
    what = ("rate", "times")
    sides = peers((*WAYS, *OTHERS), what=what)
    metrics = (RATE, P50, P99, P999, CPU_OF_REQUESTS)
    yield Case("peers/request", attrs.evolve(OURS, what=what), sides, metrics)


def beside_hog(size: Size, folder: str) -> Iterator[Case]:
    for case in one_client(size, folder):
        yield attrs.evolve(case, name="peers/request/beside-hog", hogs=1)


def idle(size: Size, folder: str) -> Iterator[Case]:
    sides = peers((*WAYS, *OTHERS), what=("idle",))
    yield Case("peers/idle", attrs.evolve(OURS, what=("idle",)), sides, (CPU, WAKE_UPS))


def many_clients(size: Size, folder: str) -> Iterator[Case]:
    for count in size.clients_of_peers:
        ours = attrs.evolve(OURS, clients=count)
        for side in peers(WITH_MANY_CLIENTS, clients=count):
            # One at a time: all of them at once would be some hundred processes.
            yield Case(f"peers/{count}-clients", ours, [side], (RATE, FAIRNESS))


def bandwidth(size: Size, folder: str) -> Iterator[Case]:
    moved = {"transfer_bytes": size.hot_bytes}

    def side(name: str, module: str, *needs: str, backend: str = "asyncio", **options: Any) -> Spec:
        what, given = ("transfer",), {**moved, **options}
        programs = ("redis-server",) if module == "redis_bulk" else ()
        return Spec(name, module, backend, given, needs, programs=programs, what=what)

    small: dict[str, Any] = {
        "source_bytes": CHUNK_BYTES,
        "target_bytes": CHUNK_BYTES,
        "take": "bytes",
    }
    ours = side(OURS.name, "ours_bulk", **small)
    others = [
        side("l5 shm, trio", "ours_bulk", backend="trio", **small),
        side("l5 unix, asyncio", "ours_bulk", transports="unix", **small),
        side("uvloop BufferedProtocol, unix", "protocol_bulk", backend="uvloop"),
        side("asyncio BufferedProtocol, unix", "protocol_bulk"),
        side("anyio on asyncio, unix", "anyio_bulk"),
        side("anyio on trio, unix", "anyio_bulk", backend="trio"),
        side("blocking socket, unix", "sockets_bulk"),
        side("multiprocessing.Connection, unix", BLOCKING_BULK, over="multiprocessing"),
        side("pyzmq PAIR, ipc, blocking", BLOCKING_BULK, "zmq", over="zeromq"),
        side("pynng Pair0, ipc, blocking", BLOCKING_BULK, "pynng", over="nng"),
        side("grpc.aio stream, unix", "grpc_bulk", "grpc"),
        side("redis.asyncio SET, unix", "redis_bulk", "redis", "hiredis"),
        side("iceoryx2 publish and subscribe, busy", "iceoryx_bulk", "iceoryx2"),
    ]
    yield Case("peers/one-way", ours, peers(others), (BANDWIDTH,))


CASES: dict[str, Callable[[Size, str], Iterator[Case]]] = {
    "peers": one_client,
    "peers-hog": beside_hog,
    "peers-idle": idle,
    "peers-clients": many_clients,
    "peers-bandwidth": bandwidth,
}
