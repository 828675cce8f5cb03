"""Regions of servers other than `l5.serve`'s: of `l5.listen`, and of `l5.blocking.serve`."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import l5
import l5.blocking
from l5 import native

TRANSPORTS = [
    pytest.param(
        "shm", marks=pytest.mark.skipif(not native.available, reason=native.reason or "-")
    ),
    "unix",
]


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_listener_exports(transport: str, tmp_path: Path) -> None:
    with l5.Region.create(4096, write=True) as region:
        region.write(0, b"table")
        listener = await l5.listen(f"l5+unix://{tmp_path}/s")
        listener.export("table", region)
        with pytest.raises(ValueError, match="exported as 'table' already"):
            listener.export("table", region)

        async def handler(connection: l5.Connection) -> None:
            async with connection:
                async for message in connection:
                    await connection.send(message)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handler, tasks)
            url = f"{listener.urls[0]}?transports={transport}"
            async with await l5.connect(url) as connection:
                remote = await connection.open_region("table")
                assert remote.one_sided == (transport == "shm")
                assert await remote.read(0, 5) == b"table"
                await remote.write(0, b"chair")
                assert region.read(0, 5) == b"chair"
                listener.revoke("table")
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read(0, 5)
                with pytest.raises(ValueError, match="no region is exported as 'table'"):
                    listener.revoke("table")
                listener.export("again", region)
                remote = await connection.open_region("again")
                await listener.aclose()
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read(0, 5)
                await connection.send(b"goes on")
                assert await connection.receive() == b"goes on"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ends_by", ["revoke", "close", "stop"])
def test_a_blocking_server_exports(transport: str, ends_by: str, tmp_path: Path) -> None:
    region = l5.Region.create(4096, atomic=True)
    server = l5.blocking.serve(bytes.upper, f"l5+unix://{tmp_path}/s")
    with pytest.raises(RuntimeError, match="has not been started"):
        server.export("table", region)
    with region, server:
        region.write(0, b"table")
        server.export("table", region)
        with pytest.raises(ValueError, match="exported as 'table' already"):
            server.export("table", region)
        with l5.blocking.connect(f"{server.urls[0]}?transports={transport}") as connection:
            remote = connection.open_region("table")
            assert remote.read(0, 5) == b"table"
            assert remote.fetch_and_add(8, 3) == 0
            assert connection.request(b"x") == b"X"
            if ends_by == "revoke":
                server.revoke("table")
                with pytest.raises(ValueError, match="no region is exported as 'table'"):
                    server.revoke("table")
            elif ends_by == "close":
                region.close()
            else:
                server.stop()
            with pytest.raises(l5.RemoteAccessError):
                remote.read(0, 5)
            if ends_by != "stop":
                assert connection.request(b"x") == b"X"
