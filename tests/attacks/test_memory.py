"""Memory that a hostile process offers, or spoils; docs/security-shared-memory.md has the table."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

import l5
from tests.attacks._support import attack, attacker, bystander, held, victim

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]

NO_MEMFD = "cannot be sealed: it is no memfd"
REASONS = {
    "unsealed": "not sealed against shrinking and growing",
    "sealed against growing only": "not sealed against shrinking and growing",
    "sealed against shrinking only": "not sealed against shrinking and growing",
    "sealed against writing": "sealed against writing",
    "sealed against later writing": "sealed against writing",
    "sealed against sealing": "cannot be sealed against hole punching",
    "a page short": "has not the size that was announced",
    "a page long": "has not the size that was announced",
    "one TiB": "has not the size that was announced",
    "never allocated": "mark|holes",
    "one page punched out": "has holes",
    "without our mark": "does not begin with the mark",
    "read-only": "not open for reading and writing",
    "write-only": "not open for reading and writing",
    "only a path": NO_MEMFD,
    "a file on disk": NO_MEMFD,
    "a file in /dev/shm": "not sealed",
    "a folder": NO_MEMFD,
    "a device": NO_MEMFD,
    "a pipe": NO_MEMFD,
    "an eventfd": NO_MEMFD,
    "a socket": NO_MEMFD,
    "huge pages": "no ordinary pages",
    "no size": "does not say how large",
    "a size in words": "does not say how large",
    "a true size": "does not say how large",
    "a size of zero": "not a power of two",
    "a negative size": "not a power of two",
    "a size of 1 TiB": "total_shared",
    "a size that is no power of two": "not a power of two",
    "0 descriptors": "no descriptor arrived",
    "2 descriptors": "2 descriptors came",
}


async def at_rest(path: Path) -> tuple[int, int]:
    """Return what the victim holds between attacks; its loop keeps some for the first process."""
    await attack("_hostile_client", path, "memory:0 descriptors")
    return held()


async def test_memory_that_is_declined(tmp_path: Path) -> None:
    """With the reason; the connection stays on its socket, and is sound there."""
    url = f"l5+unix://{tmp_path}/s"
    async with victim(url) as (_, ticker), bystander(url) as some_more:
        before = await at_rest(tmp_path / "s")
        found = await attack("_hostile_client", tmp_path / "s", *(f"memory:{m}" for m in REASONS))
        for one, (case, reason) in zip(found, REASONS.items(), strict=True):
            assert re.search(reason, one["declined"]), (case, one)
            assert one["sound"], case
        await ticker.more(5)
        await some_more()
        while held() != before:  # the last descriptors are closed beside the loop
            await anyio.sleep(0.001)


async def test_too_many_descriptors(tmp_path: Path) -> None:
    """More than a hello may have: the client is turned away, and all of them are closed."""
    url = f"l5+unix://{tmp_path}/s"
    cases = [f"memory:{count} descriptors" for count in (9, 250, 1000)] * 3
    async with victim(url) as (_, ticker), bystander(url) as some_more:
        before = await at_rest(tmp_path / "s")
        for one in await attack("_hostile_client", tmp_path / "s", *cases):
            assert re.search("descriptors", one["rejected"]), one
        await ticker.more(5)
        await some_more()
        while held() != before:
            await anyio.sleep(0.001)


async def test_memory_that_was_taken_stays(tmp_path: Path) -> None:
    """Nobody can shrink it, punch holes into it or map it anew; whoever tries is served on."""
    url = f"l5+unix://{tmp_path}/s"
    async with victim(url) as (_, ticker), bystander(url) as some_more:
        cases = "memory:tampered with afterwards", "memory:punched meanwhile"
        tampered, punched = await attack("_hostile_client", tmp_path / "s", *cases)
        assert tampered["sound"]
        assert set(tampered["found"].values()) == {"Operation not permitted"}, tampered
        assert punched["whole"] + punched["declined"] == 20, punched
        await ticker.more(5)
        await some_more()


async def test_a_server_that_spoils_the_memory(tmp_path: Path) -> None:
    """It can punch holes before the client locks the file, and the client notices; not after."""
    url = f"l5+unix://{tmp_path}/s"
    async with attacker("_hostile_server", tmp_path / "s", "spoil", "leave open") as server:
        with pytest.raises(l5.ConnectError, match=r"spoilt the memory of the rings: .* holes"):
            await l5.connect(url)
        said = await server.says()
        assert said["hung_up"]
        assert said["found"]["punch"] == "done"
        assert said["found"]["shrink"] == said["found"]["grow"] == "Operation not permitted"
        async with await l5.connect(url, ring=65536) as connection:
            assert connection.transport == "shm"
            assert await connection.request(b"sound") == b"sound"
        said = await server.says()
        assert set(said["found"].values()) == {"Operation not permitted"}, said


async def test_a_server_that_sends_descriptors(tmp_path: Path) -> None:
    """A client expects none: the kernel refuses them, or they are closed."""
    url = f"l5+unix://{tmp_path}/s"
    async with attacker("_hostile_server", tmp_path / "s", "descriptors") as server:
        with pytest.raises(l5.ConnectError):
            await l5.connect(url)
        assert await server.says()
