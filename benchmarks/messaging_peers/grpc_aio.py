"""gRPC on asyncio over a Unix socket: unary calls of one channel.

Its guide advises against streams for requests from Python.  The bytes are passed as they are, so
there is no protobuf in the way.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from benchmarks.messaging_peers.loops import Request


async def echo(request: bytes, context: Any) -> bytes:
    return request


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    running = grpc.aio.server()
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    running.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Bench", methods)])
    running.add_insecure_port(f"unix:{address}")
    await running.start()
    yield f"unix:{address}"
    await running.stop(None)


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/Bench/Echo")

        async def request(payload: bytes) -> bytes:
            return await call(payload)

        yield request
