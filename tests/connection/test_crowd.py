"""Many clients of one server: it tells them; those on its CPU leave it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import l5
from l5 import native
from l5._wait import current_hub

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]
two_cpus = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2 or len(os.sched_getaffinity(0)) < (os.cpu_count() or 1),
    reason="needs two CPUs, and all of the machine's",
)

CROWD_AT = 320 + 24
CROWD_MAX = 8

SERVER = """
import os, sys, anyio, l5
os.sched_setaffinity(0, {int(sys.argv[2])})

async def main():
    async with l5.serve(lambda request: request, sys.argv[1]):
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""


@contextmanager
def program(code: str, *arguments: object) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()


def crowd() -> int:
    """Return what the poller of this loop has heard, after a turn of the loop."""
    poller = current_hub().poller
    assert poller is not None
    poller.breathe()
    return poller.crowd


async def hear(expected: int, *clients: l5.Connection) -> None:
    """Ask by those clients, all at once, until the server has said that it has so many."""
    heard: set[int] = set()

    async def ask(client: l5.Connection) -> None:
        while expected not in heard:  # until then: a server that sleeps in between counts anew
            assert await client.request(b"a") == b"a"
            heard.add(crowd())

    async with anyio.create_task_group() as group:
        for client in clients:
            group.start_soon(ask, client)
    assert expected in heard


async def test_a_server_tells_those_that_use_it_how_many_they_are(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    with program(SERVER, url, max(os.sched_getaffinity(0))):
        async with await l5.connect(url) as one, await l5.connect(url) as two:
            await hear(2, one, two)
            async with await l5.connect(url) as three:
                await hear(3, one, two, three)
            await anyio.sleep(0.05)  # the server sleeps: it counts anew
            await hear(1, one)


async def test_what_a_server_says_is_bounded(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(bytes, url), await l5.connect(url) as client:
        await hear(1, client)
        word = crowd_word(client)
        assert word.value == 1  # this is the place
        word.value = 2**64 - 1
        while (heard := crowd()) == 0:  # the loop is about to sleep, and listens to nobody
            assert await client.request(b"b") == b"b"
            word.value = 2**64 - 1
        assert heard == CROWD_MAX


def crowd_word(client: l5.Connection) -> ctypes.c_uint64:
    ring = client._session.ring
    assert ring is not None
    return ctypes.c_uint64.from_address(_control_page(ring.address) + CROWD_AT)


def _control_page(channel: int) -> int:
    """Return where the channel's mapping begins: the page that says so at its beginning."""
    magic = int.from_bytes(b"5LRING1\0", "little")
    for at in range(channel, channel + 256, 8):
        pointer = ctypes.c_uint64.from_address(at).value
        aligned = pointer > 2**32 and pointer % os.sysconf("SC_PAGE_SIZE") == 0  # no size
        if aligned and ctypes.c_uint64.from_address(pointer).value == magic:
            return pointer
    raise AssertionError("no pointer to a control page")


async def test_what_is_said_of_the_machines_cpus_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHON_CPU_COUNT: who is pinned to as many would be moved, and allowed all of them."""
    monkeypatch.setattr(os, "cpu_count", lambda: 3 + os.sysconf("SC_NPROCESSORS_ONLN"))
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(bytes.upper, url), await l5.connect(url):
        poller = current_hub().poller
        assert poller is not None and poller.movable == os.sysconf("SC_NPROCESSORS_ONLN")


@two_cpus
async def test_a_client_in_a_crowd_leaves_its_servers_cpu(tmp_path: Path) -> None:
    url, everywhere = f"l5+unix://{tmp_path}/s", os.sched_getaffinity(0)
    here = min(everywhere)
    with program(SERVER, url, here):
        async with await l5.connect(url) as client:
            await hear(1, client)  # it does not say so again
            said = crowd_word(client)
            poller = current_hub().poller
            assert poller is not None and poller.movable == os.sysconf("SC_NPROCESSORS_ONLN")
            try:
                for _ in range(1000):
                    os.sched_setaffinity(0, {here})  # who may not be elsewhere stays
                    said.value = 2
                    for _ in range(100):
                        await client.request(b"a")
                    assert poller.moves == 0
                    assert os.sched_getaffinity(0) == {here}
                    os.sched_setaffinity(0, everywhere)
                    for _ in range(100):
                        await client.request(b"a")
                    if poller.moves:
                        break
                assert poller.moves
                assert os.sched_getaffinity(0) == everywhere
            finally:
                os.sched_setaffinity(0, everywhere)
