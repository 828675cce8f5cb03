"""ucxx on asyncio: tagged messages between buffers that both ends keep, UCX choosing the way.

It polls: that is the fastest of its progress modes, and the others do not sleep either.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

os.environ.setdefault("UCXPY_PROGRESS_MODE", "polling")
os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")

import ucxx

from benchmarks.messaging_peers.loops import PAYLOAD, Request


async def echo(endpoint: Any) -> None:
    buffer = np.empty(len(PAYLOAD), np.uint8)
    try:
        while True:
            await endpoint.recv(buffer)
            await endpoint.send(buffer)
    except ucxx.exceptions.UCXError:  # the client has gone
        await endpoint.close()


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    listener = ucxx.create_listener(echo)
    yield str(listener.port)


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    endpoint: Any = await ucxx.create_endpoint("127.0.0.1", int(address))
    buffer = np.empty(len(PAYLOAD), np.uint8)

    async def request(payload: bytes) -> bytes:
        await endpoint.send(np.frombuffer(payload, np.uint8))
        await endpoint.recv(buffer)
        return buffer.tobytes()

    yield request
    await endpoint.close()
