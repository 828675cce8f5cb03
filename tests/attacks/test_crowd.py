"""A thousand connections of which four are used: idle ones are not looked at, and still there."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

import l5
from l5._wait import current_hub
from tests.attacks._actors import Stage

pytestmark = pytest.mark.anyio

HOLDERS, HELD, ACTIVE = 4, 249, 4


@pytest.fixture
def anyio_backend() -> str:
    """One loop: what is shown here is the same C on all of them."""
    return "asyncio"


@contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def own_kib() -> int:
    if "L5_SANITIZED" in os.environ:
        return 0  # a sanitizer keeps what was freed
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


async def test_a_thousand_connections(stage: Stage, tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    with many_files():
        files, kib = len(os.listdir("/proc/self/fd")), own_kib()
        async with l5.serve(bytes.upper, url, backlog=1024) as server, AsyncExitStack() as stack:
            holders = [
                await stack.enter_async_context(
                    stage.actor("_hostile:hold", url, HELD, {"ring": 65536, "connect_timeout": 60})
                )
                for _ in range(HOLDERS)
            ]
            for holder in holders:
                for _ in range(HELD):
                    assert (await holder.says()).startswith("shm")
            active = [
                await stack.enter_async_context(await l5.connect(url, ring=65536))
                for _ in range(ACTIVE)
            ]
            assert server.statistics().connections == HOLDERS * HELD + ACTIVE
            for _ in range(2000):
                for connection in active:
                    assert await connection.request(b"x") == b"X"
            poller = current_hub().poller
            assert poller is not None
            assert poller.count <= 3 * ACTIVE  # both ends of the active ones are in this loop
            # A socket and a pidfd, and tens of kilobytes: the rings are their clients' memory.
            opened = len(os.listdir("/proc/self/fd")) - files
            assert opened <= 2 * (HOLDERS * HELD + 2 * ACTIVE) + 64
            assert own_kib() - kib < 48 * (HOLDERS * HELD)
            for holder in holders:
                await holder.tell("go on")
                assert await holder.says() == "all served"
    with anyio.fail_after(60):
        while len(os.listdir("/proc/self/fd")) > files + 8:
            await anyio.sleep(0.01)
