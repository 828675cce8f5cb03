"""Conformance: how remote memory ends, and that the end is said; the suite as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

import l5
from l5.abc import RemoteRegion

from ._harness import pattern, settle
from ._interrupt import Interrupted, at_every_await
from ._regions import SIZE, AccessTests, Opened, RefusalTests, RegionHarness


class _Through(Exception):
    """The operation got through."""


_End = Callable[[Opened], Awaitable[object]]


class RegionEndTests(RegionHarness):
    """Ends: every operation fails with `RemoteAccessError`, before and after."""

    async def _ends(self, directory: str, end: _End, connection_ends: bool = False) -> None:
        async with self.region(directory) as opened:
            remote = opened.remote
            assert await remote.read(0, 1) == b"\0"
            view = remote.mapping
            await end(opened)
            await _until_ended(remote)
            for operation in _operations(remote):
                with pytest.raises(l5.RemoteAccessError):
                    await operation()
            assert remote.closed
            with pytest.raises(l5.RemoteAccessError):
                _ = remote.mapping
            if view is not None:  # of memory that is still there
                assert bytes(view[:8]) is not None
                view.release()
            await remote.aclose()
            if not connection_ends:
                assert await opened.client.request(b"=sound") == b"=sound"

    async def test_revoking(self, directory: str) -> None:
        async def end(opened: Opened) -> None:
            opened.server.revoke("table")

        await self._ends(directory, end)

    async def test_closing_the_region(self, directory: str) -> None:
        async def end(opened: Opened) -> None:
            opened.owned.close()

        await self._ends(directory, end)

    async def test_closing_it_here(self, directory: str) -> None:
        async def end(opened: Opened) -> None:
            await opened.remote.aclose()

        await self._ends(directory, end)

    async def test_stopping_the_server(self, directory: str) -> None:
        async def end(opened: Opened) -> None:
            await opened.server.stop(0.0)

        await self._ends(directory, end, connection_ends=True)

    async def test_closing_the_connection(self, directory: str) -> None:
        async def end(opened: Opened) -> None:
            await opened.client.aclose()

        await self._ends(directory, end, connection_ends=True)

    async def test_what_comes_after_revoking_is_not_seen(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, client, server):
            server.revoke("table")
            owned.write(0, b"secret")
            with pytest.raises(l5.RemoteAccessError):
                await remote.read(0, 6)
            server.export("table", owned)
            with pytest.raises(l5.RemoteAccessError):
                await remote.read(0, 6)  # what was opened before stays revoked
            again = await client.open_region("table")
            assert await again.read(0, 6) == b"secret"

    async def test_outstanding_operations(self, directory: str) -> None:
        """Tasks that go on and on all end with the error when the owner revokes."""
        async with self.region(directory) as (remote, owned, _, server):
            ended: list[str] = []

            async def go_on(name: str, operation: Callable[[], Awaitable[object]]) -> None:
                try:
                    while True:
                        await operation()
                except l5.RemoteAccessError:
                    ended.append(name)

            async with anyio.create_task_group() as group:
                for number, operation in enumerate(_operations(remote)):
                    group.start_soon(go_on, str(number), operation)
                await settle(3)
                server.revoke("table")
            assert len(ended) == len(_operations(remote))
            assert not owned.closed

    async def test_others_go_on(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, client, server):
            server.export("again", owned)
            again = await client.open_region("again")
            server.revoke("table")
            await _until_ended(remote)
            owned.write(0, b"again")
            if not self.revoking_spares_others:
                with pytest.raises(l5.RemoteAccessError):
                    await again.read(0, 5)
                again = await client.open_region("again")
            assert await again.read(0, 5) == b"again"

    async def test_cancelled_at_every_await(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, client, _):
            data = pattern(SIZE)
            owned.write(0, data)

            async def use(number: int) -> None:
                region = await client.open_region("table")
                assert await region.read(5, 100_000) == data[5:100_005]
                await region.write(0, data[:70_000])
                await region.fetch_and_add(SIZE - 8, 0)
                await region.read_many([(number, 100) for number in range(100)])
                await region.aclose()

            async def check(number: int, outcome: Interrupted) -> None:
                assert await remote.read(0, SIZE) == data
                assert await client.request(b"=sound") == b"=sound"

            await at_every_await(use, check)

    async def test_opening_the_first_cancelled_at_every_await(self, directory: str) -> None:
        async with self.region(directory, regions_max=2) as (_, owned, _, server):
            owned.write(0, b"table")
            async with await self._connect(server.urls[0], {}) as client:

                async def use(number: int) -> None:
                    region = await client.open_region("table")
                    assert await region.read(0, 5) == b"table"
                    raise _Through

                async def check(number: int, outcome: Interrupted) -> None:
                    assert await client.request(b"=sound") == b"=sound"

                with pytest.raises(_Through):
                    await at_every_await(use, check)


async def _until_ended(remote: RemoteRegion) -> None:
    while True:
        try:
            await remote.read(0, 1)
        except l5.RemoteAccessError:
            return
        await anyio.sleep(0.001)


def _operations(remote: RemoteRegion) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: remote.read(0, 8),
        lambda: remote.read(0, 700_000),
        lambda: remote.read_many([(0, 8)] * 500),
        lambda: remote.read_each([(0, 8)] * 500, lambda offset, data: None),
        lambda: remote.write(0, bytes(8)),
        lambda: remote.compare_and_swap(8, 0, 1),
        lambda: remote.fetch_and_add(16, 1),
    ]


@pytest.mark.anyio
class RegionSuite(AccessTests, RefusalTests, RegionEndTests):
    """What remote memory has to do over a transport, on every event loop.

    As `TransportSuite`, for the same class variables, and one more: `one_sided` tells whether
    regions are reached without their owner's CPU over this transport.
    """
