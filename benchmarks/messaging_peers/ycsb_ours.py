"""YCSB over `l5`: the table stands in a native service."""

import ctypes
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import l5
from benchmarks.messaging_peers.ours import PATIENT, expect_transport, keywords, url
from benchmarks.messaging_peers.ycsb_data import (
    AT_ONCE,
    BLOCK_ROWS,
    FIELDS,
    LOOKUP,
    ROW_BYTES,
    SCAN,
    Turns,
    check_field,
    check_rows,
    drawn,
    keys,
    row,
)

IDLE_RING_BYTES = 64 * 1024


def service(options: dict[str, Any]) -> l5.NativeService:
    """Return the table as a service; `options` name the library and the number of rows."""
    library = ctypes.CDLL(options["library"])
    library.table_new.restype = ctypes.c_void_p
    numbers = keys(options["rows"])
    packed = array("I", numbers)
    at = library.table_new(
        ctypes.c_uint32(len(numbers)),
        ctypes.c_void_p(packed.buffer_info()[0]),
        b"".join(map(row, numbers)),
    )
    if not at:
        raise MemoryError(f"no memory for a table of {len(numbers)} rows")
    handler = ctypes.cast(library.table_answer, ctypes.c_void_p).value
    workers = options.get("workers", 1)
    return l5.NativeService(handler, at, workers=workers, keep_alive=library, name="ycsb")


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    served = l5.serve(service(options), url(address, options), **keywords(options))
    async with served as running:
        yield running.urls[0]


@asynccontextmanager
async def client(
    address: str, options: dict[str, Any]
) -> AsyncGenerator[Callable[[], Awaitable[int]]]:
    async with AsyncExitStack() as stack:
        for _ in range(options.get("idle", 0)):
            await stack.enter_async_context(
                await l5.connect(address, ring=IDLE_RING_BYTES, **PATIENT)
            )
        connection = await stack.enter_async_context(await l5.connect(address, **keywords(options)))
        if not options.get("any_transport"):
            expect_transport(connection, options)
        asked = [(key, number % FIELDS) for number, key in enumerate(drawn(options))]
        turns = Turns([LOOKUP.pack(key, field) for key, field in asked])
        request = connection.request

        async def lookups() -> int:
            for wanted in turns.take():
                await request(wanted)
            return AT_ONCE

        async def scan() -> int:
            found = 0
            while block := await request(LOOKUP.pack(found, SCAN)):
                found += len(block) // ROW_BYTES
            return check_rows(found, options)

        for key, field in asked[:BLOCK_ROWS]:
            check_field(key, field, await request(LOOKUP.pack(key, field)))
        yield {"lookups": lookups, "scan": scan}[options["do"]]
