"""YCSB-C over frameworks for requests, by what each goes between hosts: Figure 11 of the L5 paper.

Behind each stands the same table, in Python. The paper's peers were Seastar on DPDK and eRPC, which
no package has; gRPC, ZeroMQ and UCX are what has one.
"""

import importlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from benchmarks.messaging_peers.ycsb_data import (
    AT_ONCE,
    BLOCK_ROWS,
    FIELD_BYTES,
    FIELDS,
    LOOKUP,
    Turns,
    check_field,
    drawn,
    keys,
    row,
)

Answer = Callable[[bytes], bytes]
Request = Callable[[bytes], Awaitable[bytes]]


def table(options: dict[str, Any]) -> Answer:
    """Return what answers a lookup: a hash table of rows."""
    rows = {key: row(key) for key in keys(options["rows"])}

    def answer(request: bytes) -> bytes:
        key, field = LOOKUP.unpack(request)
        return rows[key][field * FIELD_BYTES : (field + 1) * FIELD_BYTES]

    return answer


@asynccontextmanager
async def serve_l5(answer: Answer, options: dict[str, Any]) -> AsyncGenerator[str]:
    import l5
    from benchmarks.messaging_peers.ours import PATIENT

    async def handler(request: bytes) -> bytes:
        return answer(request)

    address = options.get("device", "127.0.0.1")
    insecure = address != "127.0.0.1"
    async with l5.serve(handler, f"l5://{address}:0", insecure=insecure, **PATIENT) as running:
        yield running.urls[0]


@asynccontextmanager
async def ask_l5(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    import l5
    from benchmarks.messaging_peers.ours import PATIENT, expect_transport

    async with await l5.connect(address, transports=options["transports"], **PATIENT) as connection:
        expect_transport(connection, options)
        yield connection.request


@asynccontextmanager
async def serve_grpc(answer: Answer, options: dict[str, Any]) -> AsyncGenerator[str]:
    import grpc
    import grpc.aio

    async def lookup(request: bytes, context: Any) -> bytes:
        return answer(request)

    running = grpc.aio.server()
    methods = {"Lookup": grpc.unary_unary_rpc_method_handler(lookup)}
    running.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Bench", methods)])
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    yield f"127.0.0.1:{port}"
    await running.stop(None)


@asynccontextmanager
async def ask_grpc(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    import grpc.aio

    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/Bench/Lookup")

        async def request(wanted: bytes) -> bytes:
            return await call(wanted)

        yield request


@asynccontextmanager
async def serve_zeromq(answer: Answer, options: dict[str, Any]) -> AsyncGenerator[str]:
    import zmq
    import zmq.asyncio

    async def run(replier: Any) -> None:
        while True:
            await replier.send(answer(await replier.recv()))

    with zmq.asyncio.Context() as context, context.socket(zmq.REP) as replier:
        replier.bind("tcp://127.0.0.1:*")
        async with anyio.create_task_group() as group:
            group.start_soon(run, replier)
            yield replier.getsockopt_string(zmq.LAST_ENDPOINT)
            group.cancel_scope.cancel()


@asynccontextmanager
async def ask_zeromq(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    from benchmarks.messaging_peers import zeromq

    async with zeromq.client(address, options) as request:
        yield request


def ucx(options: dict[str, Any]) -> Any:
    """Import ucxx, told by which of UCX's transports to go."""
    os.environ.setdefault("UCXPY_PROGRESS_MODE", "polling")
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    if "ucx" in options:
        os.environ["UCX_TLS"] = options["ucx"]
    return importlib.import_module("ucxx")


@asynccontextmanager
async def serve_ucx(answer: Answer, options: dict[str, Any]) -> AsyncGenerator[str]:
    import numpy as np

    ucxx = ucx(options)

    async def run(endpoint: Any) -> None:
        wanted, found = np.empty(LOOKUP.size, np.uint8), np.empty(FIELD_BYTES, np.uint8)
        try:
            while True:
                await endpoint.recv(wanted)
                found[:] = np.frombuffer(answer(wanted.tobytes()), np.uint8)
                await endpoint.send(found)
        except ucxx.exceptions.UCXError:  # the client has gone
            await endpoint.close()

    listener = ucxx.create_listener(run)
    yield str(listener.port)


@asynccontextmanager
async def ask_ucx(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    import numpy as np

    ucxx = ucx(options)
    endpoint: Any = await ucxx.create_endpoint("127.0.0.1", int(address))
    found = np.empty(FIELD_BYTES, np.uint8)

    async def request(wanted: bytes) -> bytes:
        await endpoint.send(np.frombuffer(wanted, np.uint8))
        await endpoint.recv(found)
        return found.tobytes()

    yield request
    await endpoint.close()


Served = Callable[[Answer, dict[str, Any]], AbstractAsyncContextManager[str]]
Asked = Callable[[str, dict[str, Any]], AbstractAsyncContextManager[Request]]
FRAMEWORKS: dict[str, tuple[Served, Asked]] = {
    "l5": (serve_l5, ask_l5),
    "grpc": (serve_grpc, ask_grpc),
    "zeromq": (serve_zeromq, ask_zeromq),
    "ucx": (serve_ucx, ask_ucx),
}


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    serve, _ = FRAMEWORKS[options["framework"]]
    async with serve(table(options), options) as at:
        yield at


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    _, ask = FRAMEWORKS[options["framework"]]
    async with ask(address, options) as request:
        asked = [(key, number % FIELDS) for number, key in enumerate(drawn(options))]
        turns = Turns([LOOKUP.pack(key, field) for key, field in asked])

        async def lookups() -> int:
            for wanted in turns.take():
                await request(wanted)
            return AT_ONCE

        for key, field in asked[:BLOCK_ROWS]:
            check_field(key, field, await request(LOOKUP.pack(key, field)))
        yield lookups
