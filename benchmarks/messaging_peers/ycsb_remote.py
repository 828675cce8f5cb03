"""YCSB over `l5` against a table that another host serves."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.messaging_peers import ycsb_ours


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    del address
    async with ycsb_ours.client(options["remote"], options) as transfer:
        yield transfer
