"""Conformance: remote memory, whatever carries it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import anyio
import pytest

import l5
from l5.abc import RemoteRegion

from ._harness import Desk, Harness, pattern

SIZE = 1 << 20
WORD = 8


class Opened(NamedTuple):
    """Both ends of a region."""

    remote: RemoteRegion
    owned: l5.Region
    client: l5.Connection
    server: l5.Server


class RegionHarness(Harness):
    """How the tests of regions make some."""

    one_sided: ClassVar[bool]
    """Whether this transport reaches regions without their owner's CPU."""
    owner_atomics: ClassVar[bool] = True
    """Whether atomics are atomic with the owner's, too."""
    revoking_spares_others: ClassVar[bool] = True
    """Whether other regions survive the use of one that was revoked; else they are opened again."""

    @asynccontextmanager
    async def region(
        self, directory: str, *, size: int = SIZE, rights: str = "rwa", **options: Any
    ) -> AsyncGenerator[Opened]:
        """A region, exported and opened; `rights` as letters."""
        with l5.Region.create(size, write="w" in rights, atomic="a" in rights) as owned:
            async with self.serving(Desk().handle, directory, **options) as (client, server):
                server.export("table", owned)
                remote = await client.open_region("table")
                assert remote.one_sided == self.one_sided, remote.emulated_because
                yield Opened(remote, owned, client, server)


def word(value: int) -> bytes:
    """A word of memory."""
    return value.to_bytes(WORD, "little")


def beyond(size: int) -> list[tuple[int, int]]:
    """Spans that are not within a region."""
    return [(size, 1), (size - 7, 8), (0, size + 1), (-1, 1), (0, -1), (1 << 62, 8), (1 << 70, 1)]


class AccessTests(RegionHarness):
    """What is written is read."""

    async def test_facts(self, directory: str) -> None:
        async with self.region(directory, size=5000, rights="a") as (remote, owned, _, _):
            facts = (remote.name, remote.size_bytes, remote.writable, remote.atomic)
            assert facts == ("table", 5000, False, True)
            assert (remote.closed, owned.closed) == (False, False)
            assert bool(remote.emulated_because) == (not remote.one_sided)

    async def test_reads(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):
            data = pattern(SIZE)
            owned.write(0, data)
            for offset, length in [(0, 8), (1, 7), (3, 1000), (SIZE - 1, 1), (SIZE, 0), (64, 0)]:
                assert await remote.read(offset, length) == data[offset : offset + length]
            assert await remote.read(0, SIZE) == data

    async def test_writes(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):
            expected = bytearray(SIZE)
            for offset, length in [(0, 8), (17, 3), (4095, 2), (SIZE - 9, 9), (8, 0), (5, 300_001)]:
                data = pattern(length, offset)
                await remote.write(offset, data)
                expected[offset : offset + length] = data
            assert owned.read(0, SIZE) == expected
            await remote.write(0, memoryview(bytearray(b"any buffer")))
            assert owned.read(0, 10) == b"any buffer"

    async def test_many_reads(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):
            data = pattern(SIZE)
            owned.write(0, data)
            spans = [(number * 997 % (SIZE - 3000), number % 3000) for number in range(3000)]
            spans += [(5, 200_000), (0, 0), (5, 200_000)]
            found = await remote.read_many(spans)
            assert found == [data[offset : offset + length] for offset, length in spans]
            assert await remote.read_many([]) == []

    async def test_each_read_may_lead_to_more(self, directory: str) -> None:
        """A list of nodes: each holds the offsets of two others, or zeros."""
        async with self.region(directory) as (remote, owned, _, _):
            for node in range(1, 128):
                children = [word(child * 64) for child in (2 * node, 2 * node + 1) if child < 128]
                owned.write(node * 64, b"".join(children).ljust(16, b"\0"))
            seen: list[int] = []

            def take(offset: int, data: bytes) -> list[tuple[int, int]]:
                seen.append(offset)
                children = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8)]
                return [(child, 16) for child in children if child]

            for window in (1, 7, 1000):
                seen.clear()
                await remote.read_each([(64, 16)], take, window=window)
                assert sorted(seen) == [node * 64 for node in range(1, 128)]

    async def test_what_take_raises_ends_the_reading(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):

            def take(offset: int, data: bytes) -> None:
                raise LookupError(offset)

            with pytest.raises(LookupError):
                await remote.read_each([(0, 8)] * 100, take)
            with pytest.raises(ValueError):
                await remote.read_each([(0, 8)], take, window=0)
            owned.write(0, b"sound")
            assert await remote.read(0, 5) == b"sound"

    async def test_atomics(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):
            assert await remote.fetch_and_add(8, 5) == 0
            assert await remote.fetch_and_add(8, -6) == 5
            assert await remote.fetch_and_add(8, 1) == (1 << 64) - 1
            assert await remote.compare_and_swap(8, 1, 2) == 0
            assert owned.read(8, 8) == word(0)
            assert await remote.compare_and_swap(8, 0, (1 << 64) - 1) == 0
            assert owned.read(8, 8) == word((1 << 64) - 1)
            assert owned.fetch_and_add(8, 1) == (1 << 64) - 1
            assert await remote.read(8, 8) == word(0)

    async def test_counting_together(self, directory: str) -> None:
        """Two clients and the owner: nobody's increment is lost."""
        async with self.region(directory) as (remote, owned, _, server):
            async with await self._connect(server.urls[0], {}) as other:
                second = await other.open_region("table")

                async def count(region: RemoteRegion) -> None:
                    for _ in range(20):
                        await region.fetch_and_add(0, 1)
                        while True:  # the same, with a lock-free loop
                            old = int.from_bytes(await region.read(8, 8), "little")
                            if await region.compare_and_swap(8, old, old + 1) == old:
                                break
                        if self.owner_atomics:
                            owned.fetch_and_add(0, 1)

                async with anyio.create_task_group() as group:
                    group.start_soon(count, remote)
                    group.start_soon(count, second)
            assert owned.read(0, 16) == word(80 if self.owner_atomics else 40) + word(40)

    async def test_many_tasks(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, client, _):
            data = pattern(64 * 200)
            owned.write(0, data)

            async def read(first: int) -> None:
                for number in range(first, first + 20):
                    offset = number * 64
                    assert await remote.read(offset, 64) == data[offset : offset + 64]
                assert await client.request(b"=x") == b"=x"

            async with anyio.create_task_group() as group:
                for first in range(0, 200, 20):
                    group.start_soon(read, first)

    async def test_a_mapping_is_the_memory(self, directory: str) -> None:
        async with self.region(directory) as (remote, owned, _, _):
            mapping = remote.mapping
            if mapping is None:
                with pytest.raises(l5.RemoteAccessError):
                    remote.read_now(0, 8)
                return
            with mapping:
                owned.write(100, b"here")
                assert mapping[100:104] == b"here" and remote.read_now(100, 4) == b"here"
                assert len(mapping) == SIZE and not mapping.readonly
                mapping[0:5] = b"there"
                assert owned.read(0, 5) == b"there"


class RefusalTests(RegionHarness):
    """What is not granted is refused, and changes nothing."""

    async def test_bounds(self, directory: str) -> None:
        async with self.region(directory, size=4100) as (remote, owned, _, _):
            for offset, length in beyond(4100):
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read(offset, length)
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read_many([(0, 8), (offset, length)])
                with pytest.raises(l5.RemoteAccessError):
                    await remote.read_each([(offset, length)], lambda offset, data: None)
            for offset in (-1, 4093, 4100, 1 << 62):
                with pytest.raises(l5.RemoteAccessError):
                    await remote.write(offset, bytes(8))
                with pytest.raises(l5.RemoteAccessError):
                    await remote.fetch_and_add(offset, 1)
                with pytest.raises(l5.RemoteAccessError):
                    await remote.compare_and_swap(offset, 0, 1)
            with pytest.raises(l5.RemoteAccessError):
                await remote.fetch_and_add(4, 1)
            with pytest.raises(ValueError):
                await remote.compare_and_swap(0, 0, 1 << 64)
            assert owned.read(0, 4100) == bytes(4100)
            assert await remote.read(4096, 4) == bytes(4)

    @pytest.mark.parametrize("rights", ["", "w", "a"])
    async def test_rights(self, directory: str, rights: str) -> None:
        async with self.region(directory, rights=rights) as (remote, owned, _, _):
            for right, operation in (
                ("w", lambda: remote.write(0, word(7))),
                ("a", lambda: remote.fetch_and_add(8, 7)),
                ("a", lambda: remote.compare_and_swap(16, 0, 7)),
            ):
                if right in rights:
                    await operation()
                    continue
                with pytest.raises(l5.RemoteAccessError):
                    await operation()
            written, added = word(7 * ("w" in rights)), word(7 * ("a" in rights))
            assert owned.read(0, 24) == written + added + added
            assert await remote.read(0, 24) == owned.read(0, 24)

    async def test_names(self, directory: str) -> None:
        async with self.region(directory) as (_, owned, client, server):
            for name in ("", "x" * 65, "a\n", "\0"):
                with pytest.raises(ValueError):
                    server.export(name, owned)
                with pytest.raises(ValueError):
                    await client.open_region(name)
            with pytest.raises(ValueError):
                server.export("table", owned)
            with pytest.raises(ValueError):
                server.revoke("nothing")
            with pytest.raises(l5.RemoteAccessError, match="nothing"):
                await client.open_region("nothing")
            server.export("\N{GREEK SMALL LETTER LAMDA} \N{SNOWMAN}", owned)
            again = await client.open_region("\N{GREEK SMALL LETTER LAMDA} \N{SNOWMAN}")
            owned.write(0, b"both")
            assert await again.read(0, 4) == b"both"

    async def test_a_bounded_number(self, directory: str) -> None:
        async with self.region(directory, regions_max=3) as (remote, _, client, _):
            others = [await client.open_region("table") for _ in range(2)]
            with pytest.raises(l5.RemoteAccessError, match="regions_max"):
                await client.open_region("table")
            await others[0].aclose()
            await others[0].aclose()
            another = await client.open_region("table")
            assert await another.read(0, 1) == await remote.read(0, 1) == b"\0"

    async def test_those_that_are_dropped_make_room(self, directory: str) -> None:
        async with self.region(directory, regions_max=3) as (_, _, client, _):
            for _ in range(10):
                remote = await client.open_region("table")
                assert await remote.read(0, 1) == b"\0"

    async def test_only_who_connected(self, directory: str) -> None:
        async with self.pair(directory) as (client, server):
            with pytest.raises(l5.LocalProtocolError):
                await server.open_region("table")
            with pytest.raises(l5.RemoteAccessError, match="table"):
                await client.open_region("table")
