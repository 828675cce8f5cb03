"""Remote memory over a real driver (Soft-RoCE), on both bindings: access, ends, pages, leftovers.

The whole suite runs over the simulated device (tests/conformance/test_regions_rdma.py).
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import l5
from tests.pages.torture import Library, build_library, read_for
from tests.rdma.device.test_transport import ADDRESS, resources, reverse

SIZE = 1 << 20
# So many that the writer does not come to all of them within a round trip: a reader whose pages are
# all written while they are read gives up, as it should.
LAYOUT = l5.PageLayout(4096, 1024)
PAGES = 256

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not ADDRESS, reason="no RDMA device: needs an emulated machine"),
]


@asynccontextmanager
async def served(**regions: l5.Region) -> AsyncGenerator[tuple[Any, Any]]:
    async with l5.serve(reverse, f"l5+rdma://{ADDRESS}:0", insecure=True) as server:
        for name, region in regions.items():
            server.export(name, region)
        async with await l5.connect(server.urls[0]) as client:
            yield client, server


async def test_access() -> None:
    with l5.Region.create(SIZE, write=True, atomic=True) as owned:
        data = os.urandom(SIZE)
        owned.write(0, data)
        before = resources()
        async with served(table=owned) as (client, _):
            remote = await client.open_region("table")
            assert remote.one_sided and not remote.in_order, remote.emulated_because
            assert await remote.read(0, SIZE) == data
            spans = [(number * 997, number % 600) for number in range(500)]
            assert await remote.read_many(spans) == [data[at : at + size] for at, size in spans]
            await remote.write(0, bytes(64) + data[::-1][64:200_001])
            assert owned.read(0, 200_001) == bytes(64) + data[::-1][64:200_001]
            assert [await remote.fetch_and_add(8, 5), await remote.fetch_and_add(8, -2)] == [0, 5]
            assert await remote.compare_and_swap(8, 4, 9) == 3
            assert await remote.compare_and_swap(8, 3, 9) == 3
            assert owned.read(8, 8) == (9).to_bytes(8, "little")
            await remote.aclose()
            again = await client.open_region("table")
            assert await again.read(8, 1) == b"\x09"
        assert resources() == before


async def test_revoking() -> None:
    with l5.Region.create(4096) as one, l5.Region.create(4096) as two:
        async with served(one=one, two=two) as (client, server):
            first, second = await client.open_region("one"), await client.open_region("two")
            assert await first.read(0, 8) == await second.read(0, 8) == bytes(8)
            server.revoke("one")
            one.write(0, b"secret")
            for remote in (first, second):
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read(0, 8)
            assert await client.request(b"ab") == b"ba"
            again = await client.open_region("two")
            assert again.one_sided and await again.read(0, 8) == bytes(8)


async def test_pages_that_are_being_written(tmp_path: Path) -> None:
    library = Library(build_library(tmp_path), LAYOUT)
    with l5.Region.create(LAYOUT.end) as owned:
        async with served(pages=owned) as (client, _):
            remote = await client.open_region("pages")
            assert remote.one_sided, remote.emulated_because
            with owned.view as view:
                writer = library.begin(view)
                try:
                    outcome = await read_for(remote, library, 0.0, enough=PAGES)
                finally:
                    written = library.end(writer)
    print(outcome)
    assert written > 0, "nobody wrote"
    assert outcome.wrong == 0
    assert outcome.statistics.reads >= PAGES
