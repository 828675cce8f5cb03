"""Limits of remote memory that no transport's suite reaches; docs/remote-memory.md has them all."""

from __future__ import annotations

from pathlib import Path

import pytest

import l5
from l5 import native

MIB = 1 << 20
TRANSPORTS = [
    pytest.param(
        "shm", marks=pytest.mark.skipif(not native.available, reason=native.reason or "-")
    ),
    "unix",
]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_one_read_may_have(transport: str, tmp_path: Path) -> None:
    """The sum of the parts counts, it is looked at before any of them is read."""
    parts = [(0, MIB)] * 256
    with l5.Region.create(MIB) as region:
        region.write(0, b"table")
        async with l5.serve(bytes, f"l5+unix://{tmp_path}/s") as server:
            server.export("table", region)
            url = f"{server.urls[0]}?transports={transport}"
            async with await l5.connect(url) as connection:
                remote = await connection.open_region("table")
                assert remote.one_sided == (transport == "shm")
                with pytest.raises(l5.RemoteAccessError, match="at most 256 MiB, so read it in"):
                    await remote.read_many([*parts, (0, 1)])
                assert await remote.read(0, 5) == b"table"


async def test_how_many_regions_a_server_exports(tmp_path: Path) -> None:
    """Each has a word that revokes it; a word that is free again can be had again."""
    with l5.Region.create(4096) as region:
        region.write(0, b"table")
        async with l5.serve(bytes, f"l5+unix://{tmp_path}/s") as server:
            for number in range(512):
                server.export(f"table {number}", region)
            with pytest.raises(ValueError, match="512 regions are exported, which is the most"):
                server.export("one more", region)
            async with await l5.connect(server.urls[0]) as connection:
                last = await connection.open_region("table 511")
                assert await last.read(0, 5) == b"table"
                server.revoke("table 511")
                server.export("one more", region)
                another = await connection.open_region("one more")
                assert await another.read(0, 5) == b"table"
                with pytest.raises(l5.RemoteAccessError):
                    await last.read(0, 5)
