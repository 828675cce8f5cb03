"""Too few descriptors, at either end; and five hundred connections, one after the other."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import pytest

import l5
from benchmarks.crowd import Facts, process
from l5 import native
from tests._imports import ROOT

pytestmark = pytest.mark.anyio


@contextmanager
def open_files_max(limit: int) -> Iterator[None]:
    """Lower the soft limit on open files for the length of a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=["unix", "shm"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "shm" and not native.available:
        pytest.skip(native.reason)
    with tempfile.TemporaryDirectory() as path:
        yield f"l5+unix://{path}/s?transports={request.param}"


async def test_a_client_without_descriptors_names_the_limit(url: str) -> None:
    with process("serve", url) as server:
        at = server.says()
        limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 40
        async with AsyncExitStack() as stack:
            with open_files_max(limit):
                for _ in range(limit):
                    try:
                        connection = await l5.connect(at, ring=65536)
                    except l5.ConnectError as error:
                        assert f"RLIMIT_NOFILE ({limit}) is used up" in str(error)
                        break
                    await stack.enter_async_context(connection)
                    assert await connection.request(b"x") == b"X"
                else:
                    raise AssertionError("the limit was not reached")
            async with await l5.connect(at, ring=65536) as connection:
                assert await connection.request(b"sound") == b"SOUND"


async def test_a_server_without_descriptors_serves_whom_it_has(url: str) -> None:
    """Those that find no room wait; they come in when others have left."""
    with process("serve", url) as server:
        at = server.says()
        async with await l5.connect(at, ring=65536) as first:
            fds = Facts.of(server.pid).fds
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (fds + 12, fds + 12))
            async with AsyncExitStack() as stack:
                with pytest.raises(l5.ConnectError):
                    for _ in range(20):
                        more = await l5.connect(at, ring=65536, hello_timeout=0.5)
                        await stack.enter_async_context(more)
                assert await first.request(b"still") == b"STILL"
            async with await l5.connect(at, ring=65536) as again:
                assert await again.request(b"sound") == b"SOUND"
            assert await first.request(b"still") == b"STILL"


SERVER = """
import logging, sys, anyio, l5
async def main():
    async with l5.serve(bytes.upper, sys.argv[1], connections_max=100_000):
        print("up", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
logging.basicConfig(format="%(message)s", level=logging.WARNING)
anyio.run(main)
"""


async def test_a_server_without_descriptors_warns_once(url: str, tmp_path: Path) -> None:
    """However many come, and again within the minute; afterwards it serves newcomers."""
    command, pipe = [sys.executable, "-c", SERVER, url], subprocess.PIPE
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log) as server,
    ):
        assert server.stdout is not None and server.stdin is not None
        assert server.stdout.readline() == b"up\n"
        async with await l5.connect(url, ring=65536) as first:
            assert await first.request(b"first") == b"FIRST"
            few, (_, hard) = (
                Facts.of(server.pid).fds + 3,
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE),
            )
            for turn in range(2):
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (few, hard))
                async with AsyncExitStack() as stack, anyio.create_task_group() as group:
                    for _ in range(30):
                        group.start_soon(hold_or_fail, stack, url)
                    while not (told := (tmp_path / "log").read_text()):
                        await anyio.sleep(0.01)
                    await anyio.sleep(0.3)  # it tries again, for each of them
                    assert await first.request(b"still") == b"STILL", turn
                    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
                async with await l5.connect(url, ring=65536) as again:
                    assert await again.request(b"sound") == b"SOUND"
        server.stdin.close()
        assert server.wait() == 0
    told = (tmp_path / "log").read_text().splitlines()
    assert all(f"RLIMIT_NOFILE ({few}) is used up" in line for line in told), told
    kinds = [("cannot accept" in line, "is dropped" in line) for line in told]
    assert len(kinds) == len(set(kinds)) and (True, False) in kinds, told


async def hold_or_fail(stack: AsyncExitStack, url: str) -> None:
    with suppress(l5.ConnectError):
        await stack.enter_async_context(await l5.connect(url, ring=65536))


@pytest.fixture(
    params=["l5+unix://{}/s", "l5+shm://{}/s", "l5+tcp://127.0.0.1:0", "l5://127.0.0.1:0"],
    ids=["unix", "shm", "tcp", "shm from tcp"],
)
async def any_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if "+unix" not in request.param and "+tcp" not in request.param and not native.available:
        pytest.skip(native.reason)
    with tempfile.TemporaryDirectory() as path:
        yield request.param.format(path)


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough: what is counted belongs to the process."""
    return "asyncio"


CLIENT = """
import sys, anyio, l5
async def main():
    for line in sys.stdin:
        for _ in range(int(line)):
            async with await l5.connect(sys.argv[1], ring=65536, hello_timeout=60.0) as connection:
                assert await connection.request(b"x") == b"X"
        print(open("/proc/self/maps").read().count("memfd:l5"), flush=True)
anyio.run(main)
"""


@pytest.mark.bare  # a sanitizer keeps what was freed
async def test_five_hundred_connections_leave_nothing(any_url: str) -> None:
    """In both processes, after a first hundred: descriptors, mappings and memory as before.

    The client's is one of its own as well: this one holds what thousands of tests have left to the
    allocator. Libraries do not count: one that a process loads late is no leak.
    """
    pipe = subprocess.PIPE
    with process("serve", any_url) as server:
        command = [sys.executable, "-c", CLIENT, server.says()]
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as client:
            assert client.stdin is not None and client.stdout is not None

            def cycle(times: int) -> None:
                print(times, file=client.stdin, flush=True)
                assert client.stdout is not None and client.stdout.readline() == "0\n"

            async def settled(pid: int, fds: int) -> Facts:
                while Facts.of(pid).fds > fds:  # the server closes a moment after the client
                    await anyio.sleep(0.005)
                return Facts.of(pid)

            pids = (client.pid, server.pid)
            cycle(100)
            before = [Facts.of(pid) for pid in pids]
            cycle(500)
            after = [await settled(pid, old.fds) for pid, old in zip(pids, before, strict=True)]
            client.stdin.close()
            assert client.wait() == 0
    for old, new in zip(before, after, strict=True):
        assert new.mappings <= old.mappings + 4  # the allocator of Python may take an arena
        assert new.shared_kib <= old.shared_kib + 64
        assert new.anonymous_kib <= old.anonymous_kib + 1024, (old, new)
