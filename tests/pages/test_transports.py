"""Pages over each transport: what is read is what was written, and revocation is noticed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5

LAYOUT = l5.PageLayout(40, 2048, offset=64)
URLS = {
    "inproc": "l5+inproc://pages",
    "tcp": "l5+tcp://127.0.0.1:0?transports=tcp",
    "unix": "l5+unix://{directory}/s?transports=unix",
    "shm": "l5+unix://{directory}/s?transports=shm",
}
COPIES = {name: l5.PageCopies.ASCENDING for name in URLS} | {"shm": l5.PageCopies.MAPPED}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "transport", [*URLS.keys() - {"shm"}, pytest.param("shm", marks=pytest.mark.shm)]
    ),
]


@asynccontextmanager
async def opened(transport: str, directory: Path) -> AsyncGenerator[tuple[Any, l5.Server, Any]]:
    """A writer, the server, and a peer's region."""

    async def handle(request: bytes) -> bytes:
        return request

    with l5.Region.create(LAYOUT.end + 1000) as region:
        async with l5.serve(handle, URLS[transport].format(directory=directory)) as server:
            server.export("pages", region)
            async with await l5.connect(server.urls[0]) as conn:
                with l5.PageWriter(region, LAYOUT) as writer:
                    yield writer, server, await conn.open_region("pages")


async def test_pages_arrive(transport: str, tmp_path: Path) -> None:
    async with opened(transport, tmp_path) as (writer, _, remote):
        with l5.PageReader(remote, LAYOUT) as reader:
            assert reader.copies is COPIES[transport]
            assert reader.in_order
            expected = [bytes([index]) * LAYOUT.payload_bytes for index in range(LAYOUT.count)]
            for index, payload in enumerate(expected):
                writer.write(index, payload)
            assert await reader.read_many(range(LAYOUT.count)) == expected
            writer.update(7, (1000, b"patch"))
            changed = expected[7][:1000] + b"patch" + expected[7][1005:]
            assert await reader.read(7) == changed
            extent = l5.Extent.of(LAYOUT.end + 3, b"any length")
            writer.update(8, (0, extent.pack()))
            with pytest.raises(l5.TornRead):
                await reader.read_extent(l5.Extent.unpack(await reader.read(8)))
            assert reader.statistics.reads == 42


async def test_a_page_in_the_making_is_waited_for(transport: str, tmp_path: Path) -> None:
    async with opened(transport, tmp_path) as (writer, _, remote):
        with l5.PageReader(remote, LAYOUT) as reader:
            page = writer._at(5)
            writer._lib.l5_pages_begin(page)

            async def finish() -> None:
                await anyio.sleep(0.002)
                writer._lib.l5_pages_patch(page, 0, b"made", 4)
                writer._lib.l5_pages_end(page, LAYOUT.lines)

            async with anyio.create_task_group() as group:
                group.start_soon(finish)
                assert (await reader.read(5)).startswith(b"made")
            assert reader.statistics.retries > 0


async def test_revocation_and_the_end_of_the_connection(transport: str, tmp_path: Path) -> None:
    async with opened(transport, tmp_path) as (writer, server, remote):
        with l5.PageReader(remote, LAYOUT) as reader:
            await reader.read(0)
            server.revoke("pages")
            writer.write(0, b"secret")
            with pytest.raises(l5.RemoteAccessError):
                await reader.read(0)
            if transport == "shm":
                with pytest.raises(l5.RemoteAccessError):
                    reader.read_now(0)
