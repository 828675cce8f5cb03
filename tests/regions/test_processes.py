"""Regions between processes: hostile ones, dying ones, forking ones."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from anyio.streams.text import TextReceiveStream

import l5
from l5 import native
from l5.shm._regions import map_alien
from tests.regions._actor import COUNTS

ROOT = Path(__file__).parent.parent.parent
SIZE = 1 << 20
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


@asynccontextmanager
async def actor(role: str, url: str) -> AsyncGenerator[tuple[anyio.abc.Process, Any]]:
    """A process of `_actor.py`, and the first thing that it says."""
    command = [sys.executable, "-m", "tests.regions._actor", role, url]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        try:
            assert process.stdout is not None
            text = ""
            async for piece in TextReceiveStream(process.stdout):
                text += piece
                if "\n" in text:
                    break
            yield process, json.loads(text)
        finally:
            if process.returncode is None:
                process.kill()


async def ended(remote: l5.abc.RemoteRegion) -> str:
    """Read until the region has ended; what was said of it."""
    while True:
        try:
            await remote.read(0, 5)
        except l5.RemoteAccessError as error:
            return str(error)
        await anyio.sleep(0.001)


# ---- a hostile client --------------------------------------------------------------------------

REFUSED = {"failed", "PermissionError"}


@pytest.mark.parametrize("writable", [False, True])
async def test_a_client_with_the_file_in_its_hands(tmp_path: Path, writable: bool) -> None:
    """It has descriptors and mappings, and every system call that there is."""
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE, write=writable) as region:
        region.write(0, b"right")
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            async with await l5.connect(url) as bystander:
                other = await bystander.open_region("table")
                async with actor("attack", url) as (_, found):
                    granted = {"a writable mapping", "write", "a hole", "mprotect", "MADV_REMOVE"}
                    for name, result in found["control"].items():
                        assert result in REFUSED, name
                    for name, result in found["table"].items():
                        if not (writable and name in granted):
                            assert result in REFUSED, name
                    if not writable:
                        assert region.read(0, 5) == b"right"
                    else:  # it may write: whatever it did, the memory is there for everybody
                        region.write(0, b"right")
                    assert await other.read(0, 5) == b"right"
                    assert len(region.read(0, SIZE)) == SIZE
                    assert await bystander.request(b"sound") == b"sound"


# ---- a hostile owner ---------------------------------------------------------------------------


def file_of(size: int, seals: int) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    os.pwrite(fd, bytes(size), 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
FUTURE_WRITE = 0x10


@pytest.mark.parametrize(
    ("make", "writable", "reason"),
    [
        (lambda: file_of(8192, 0), False, "shrinking and growing"),
        (lambda: file_of(8192, fcntl.F_SEAL_SHRINK | FUTURE_WRITE), False, "and growing"),
        (lambda: file_of(8192, fcntl.F_SEAL_GROW | FUTURE_WRITE), False, "and growing"),
        (lambda: file_of(8192, FIXED), False, "not sealed against writing"),
        (lambda: file_of(8192, FIXED | FUTURE_WRITE), True, "sealed against writing"),
        (lambda: file_of(4096, FIXED | FUTURE_WRITE), False, "size"),
        (lambda: file_of(12288, FIXED | FUTURE_WRITE), False, "size"),
        (lambda: os.open("/dev/zero", os.O_RDWR), False, "no memfd"),
        (lambda: os.open(__file__, os.O_RDONLY), False, "no memfd"),
        (lambda: os.eventfd(0), False, "no memfd"),
    ],
)
async def test_memory_that_an_owner_offers(make: Any, writable: bool, reason: str) -> None:
    fd = make()
    try:
        with pytest.raises(l5.TransportUnavailable, match=reason):
            map_alien(fd, 8000, writable=writable)
    finally:
        os.close(fd)


async def test_memory_with_holes() -> None:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, 8192)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FIXED | FUTURE_WRITE)
        with pytest.raises(l5.TransportUnavailable, match="holes"):
            map_alien(fd, 8000, writable=False)
    finally:
        os.close(fd)


async def test_what_is_mapped_stays(tmp_path: Path) -> None:
    """After the client has mapped it, the owner can neither cut it nor punch holes."""
    with l5.Region.create(SIZE) as region:
        remote = map_alien(region.fileno(), SIZE, writable=False)
        with pytest.raises(PermissionError):
            os.ftruncate(region.fileno(), 4096)
        with pytest.raises(PermissionError):
            os.pwrite(region.fileno(), b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(region.fileno(), SIZE)
        region.close()
        assert remote.read_now(0, SIZE) == bytes(SIZE)
        remote.close("")


# ---- ends of processes -------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["l5+shm://{}/s", "l5+unix://{}/s?transports=unix"])
async def test_the_owner_is_killed(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(tmp_path)
    async with actor("own", url) as (process, found):
        assert found == "ready"
        async with await l5.connect(url) as connection:
            remote = await connection.open_region("table")
            assert await remote.read(0, 5) == b"table"
            view = remote.mapping
            process.kill()
            await process.wait()
            assert "ended" in await ended(remote)
            for operation in (remote.write(0, b"x"), remote.fetch_and_add(8, 1)):
                with pytest.raises(l5.RemoteAccessError):
                    await operation
            with pytest.raises((l5.RemoteAccessError, anyio.BrokenResourceError)):
                await connection.open_region("table")
            if view is not None:  # what was mapped stays as long as somebody looks at it
                assert bytes(view[:5]) == b"table"
                view.release()


async def test_no_read_returns_what_comes_after_revoking(tmp_path: Path) -> None:
    """Long copies, in which the owner revokes and writes something else."""
    url = f"l5+shm://{tmp_path}/s"
    async with actor("revoke", url) as (_, found):
        assert found == "ready"
        async with await l5.connect(url) as connection:
            for _ in range(40):
                name = (await connection.request(b"export")).decode()
                remote = await connection.open_region(name)
                await connection.request(name.encode())
                with pytest.raises(l5.RemoteAccessError):
                    while True:
                        assert b"secret" not in remote.read_now(0, remote.size_bytes)


async def test_everybody_counts(tmp_path: Path) -> None:
    """A process that maps the memory, a client that asks, and the owner: nothing is lost."""
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(4096, write=True, atomic=True) as region:
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            async with actor("count", url) as (_, found):
                assert found == "ready"
                async with await l5.connect(url, transports="unix") as connection:
                    remote = await connection.open_region("table")
                    assert not remote.one_sided
                    region.write(16, (1).to_bytes(8, "little"))  # go
                    here = asked = 0
                    while not region.read(24, 1)[0]:
                        for _ in range(200):
                            region.fetch_and_add(0, 1)
                            old = int.from_bytes(region.read(8, 8), "little")
                            here += region.compare_and_swap(8, old, old + 1) == old
                        await remote.fetch_and_add(0, 1)
                        asked += 1
            added = int.from_bytes(region.read(0, 8), "little")
            swapped = int.from_bytes(region.read(8, 8), "little")
            assert added == COUNTS + 201 * asked
            assert swapped == COUNTS + here


async def test_copies_go_forward(tmp_path: Path) -> None:
    """What stands in front is read first: so what it announces is there behind it."""
    url = f"l5+shm://{tmp_path}/s"
    async with actor("ascend", url) as (_, found):
        assert found == "ready"
        async with await l5.connect(url) as connection:
            remote = await connection.open_region("table")
            seen: set[int] = set()
            while len(seen) < 40:
                for _ in range(200):
                    copy = remote.read_now(0, 1024)
                    first = int.from_bytes(copy[:8], "little")
                    last = int.from_bytes(copy[1016:], "little")
                    assert last >= first
                    seen.add(first)
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("scheme", ["l5+shm://{}/s", "l5+unix://{}/s?transports=unix"])
async def test_fork(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(tmp_path)
    with l5.Region.create(SIZE, write=True) as region:
        region.write(0, b"table")
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            async with actor("fork", url) as (process, found):
                await process.wait()
    child = found["child"]
    assert found["parent"] == "table"
    assert not child["mapped"]
    assert child["view"] in (None, bytes(5).hex())  # nothing of the owner's is left in it
    for name in ("read", "read_now", "mapping", "write"):
        error, text = child[name]
        assert error == "RemoteAccessError", (name, error, text)
        assert "fork" in text or "parent" in text, (name, text)
    assert region.closed


async def test_an_owner_that_forks(tmp_path: Path) -> None:
    """The child has the memory, and nothing that it closes is revoked."""
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE) as region:
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            async with await l5.connect(url) as connection:
                remote = await connection.open_region("table")
                region.write(0, b"table")
                child = os.fork()
                if child == 0:
                    sound = region.read(0, 5) == b"table"
                    region.close()
                    os._exit(0 if sound and region.closed else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                assert await remote.read(0, 5) == b"table"
