"""`l5`: many requests at once, or the same number one after another."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import l5
from benchmarks.messaging_peers.loops import PAYLOAD, check
from benchmarks.messaging_peers.ours import expect_transport, keywords, server

__all__ = ["client", "server"]

AT_ONCE = 1024
"""Requests that one call is given."""


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    batch = [PAYLOAD] * AT_ONCE
    window = options["window"]
    async with await l5.connect(address, **keywords(options)) as connection:
        expect_transport(connection, options)

        async def one_by_one() -> int:
            reply = b""
            for payload in batch:
                reply = await connection.request(payload)
            check(reply)
            return AT_ONCE

        async def together() -> int:
            replies = await connection.request_many(batch, window=window)
            check(replies[-1])
            return len(replies)

        yield one_by_one if window == 1 else together
