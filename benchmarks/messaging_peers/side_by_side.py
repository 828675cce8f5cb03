"""Every system side by side, each in the form that its own documentation recommends.

Which sides there are; `benchmarks.messaging` runs the cases, under goals that begin with "peers".
"""

from collections.abc import Callable, Iterator, Sequence

import attrs

from benchmarks._cases import (
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
from benchmarks.messaging_peers.pair import Spec

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
        yield attrs.evolve(case, name="peers/request/beside-hog", beside_hog=True)


def idle(size: Size, folder: str) -> Iterator[Case]:
    sides = peers((*WAYS, *OTHERS), what=("idle",))
    yield Case("peers/idle", attrs.evolve(OURS, what=("idle",)), sides, (CPU, WAKE_UPS))


def many_clients(size: Size, folder: str) -> Iterator[Case]:
    for count in size.clients_of_peers:
        ours = attrs.evolve(OURS, clients=count)
        for side in peers(WITH_MANY_CLIENTS, clients=count):
            # One at a time: all of them at once would be some hundred processes.
            yield Case(f"peers/{count}-clients", ours, [side], (RATE, FAIRNESS))


CASES: dict[str, Callable[[Size, str], Iterator[Case]]] = {
    "peers": one_client,
    "peers-hog": beside_hog,
    "peers-idle": idle,
    "peers-clients": many_clients,
}
