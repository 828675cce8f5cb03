"""A native service behind `l5.serve`, used through `l5.connect`."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import l5
from tests.native import _handlers

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]

SHM = ""
SOCKET = "?transports=unix"
command = _handlers.command


@asynccontextmanager
async def serving(
    tmp_path: Path, mode: Any = "adaptive", **options: Any
) -> AsyncIterator[tuple[str, l5.NativeService]]:
    service = l5.NativeService(
        _handlers.address(), mode=mode, keep_alive=_handlers.library(), **options
    )
    async with l5.serve(service, f"l5+unix://{tmp_path}/s.sock") as server:
        yield server.urls[0], service
    with pytest.raises(RuntimeError, match="does not run"):
        service.fileno()
    assert service.statistics().stored_bytes == 0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what only the counters of the workers tell."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.002)


@pytest.mark.parametrize("mode", ["poll", "event", "adaptive"])
async def test_both_kinds_of_client(tmp_path: Path, mode: str) -> None:
    async with serving(tmp_path, mode) as (url, service):
        async with await l5.connect(url) as upgraded, await l5.connect(url + SOCKET) as plain:
            assert (upgraded.transport, plain.transport) == ("shm", "unix")
            for connection in (upgraded, plain):
                assert await connection.request(b"echo") == b"echo"
                assert await connection.request(b"") == b""
                with pytest.raises(l5.RequestFailed) as raised:
                    await connection.request(b"f")
                assert raised.value.remote_type == "LookupError"
                assert raised.value.remote_message == "nö such thing"
                with pytest.raises(l5.RequestFailed, match=r"OSError: .*Invalid argument"):
                    await connection.request(b"?")
            assert await upgraded.request(b"w") == b"\0\0\0\0"
            assert await plain.request(b"w") == b"\1\0\0\0"
        assert service.statistics().faults == 0


@pytest.mark.parametrize("query", [SHM, SOCKET], ids=["shm", "unix"])
async def test_long_messages(tmp_path: Path, query: str) -> None:
    async with serving(tmp_path) as (url, _), await l5.connect(url + query) as connection:
        for size in (1, 131_072, 131_073, 1 << 20, (5 << 20) + 3):
            payload = b"e" + os.urandom(size - 1)
            assert await connection.request(payload) == payload
        assert len(await connection.request(command("n", 20 << 20))) == 20 << 20


async def test_pieces_of_an_answer_come_under_credit(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, service), await l5.connect(url) as connection:
        sizes: list[int] = []
        async with connection.request_stream(command("n", 8 << 20)) as pieces:
            async for piece in pieces:
                sizes.append(len(piece))
                if len(sizes) == 1:  # nobody takes the rest: other requests are answered
                    assert await connection.request(b"e") == b"e"
        assert sum(sizes) == 8 << 20 and max(sizes) <= 131_072
        await until(lambda: service.statistics().stored_bytes == 0)  # the worker lets go last


async def test_an_answer_given_up_in_the_middle(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, service), await l5.connect(url) as connection:
        async with connection.request_stream(command("n", 8 << 20)) as pieces:
            async for _ in pieces:
                break
        assert await connection.request(b"e after") == b"e after"
        await until(lambda: not service.statistics().stored_bytes)


async def test_many_tasks_and_a_cancelled_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), await l5.connect(url) as connection:
        answers: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            answers[number] = await connection.request(b"e%d" % number)

        async with anyio.create_task_group() as group:
            group.start_soon(connection.request, command("s", 50))
            async with anyio.create_task_group() as given_up:
                given_up.start_soon(connection.request, command("s", 30))
                # Not how many are in flight: on a busy machine one may be answered by now.
                await until(lambda: connection.statistics().requests_sent == 2)
                given_up.cancel_scope.cancel()
            for number in range(40):
                group.start_soon(ask, number)
        assert answers == {number: b"e%d" % number for number in range(40)}


async def test_deadlines(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), await l5.connect(url) as connection:
        left = int.from_bytes(await connection.request(b"d", deadline=60), "little", signed=True)
        assert 0 < left <= 60_001
        none = int.from_bytes(await connection.request(b"d"), "little", signed=True)
        assert none == -1
        late = False
        while not late:  # on a busy machine the worker may be free again before it is asked
            async with anyio.create_task_group() as group:
                group.start_soon(connection.request, command("s", 100))
                await anyio.sleep(0.01)
                try:
                    await connection.request(b"e", deadline=0.02)
                except l5.DeadlineExceeded:
                    late = True
        assert await connection.request(b"e") == b"e"


async def test_requests_larger_than_the_service_takes(tmp_path: Path) -> None:
    async with serving(tmp_path, max_request_bytes=300_000) as (url, _):
        for query in (SHM, SOCKET):
            async with await l5.connect(url + query) as connection:
                assert len(await connection.request(b"e" * 300_000)) == 300_000
                with pytest.raises(l5.RequestFailed, match="MessageTooLarge"):
                    await connection.request(b"e" * 300_001)
                assert await connection.request(b"e") == b"e"


async def test_connections_end_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path, workers=2) as (url, service):
        connections = [await l5.connect(url) for _ in range(6)]
        for connection in connections:
            assert await connection.request(b"e") == b"e"
        assert service.statistics().connections == 6
        for count in range(5, -1, -1):
            await connections.pop(count // 2).aclose()
            await until(lambda count=count: service.statistics().connections == count)
        async with await l5.connect(url) as connection:
            assert await connection.request(b"e") == b"e"


async def test_the_end_of_the_server_ends_connections(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _):
        connection = await l5.connect(url)
        assert await connection.request(b"e") == b"e"
    with pytest.raises(anyio.BrokenResourceError):
        await connection.request(b"e")
    await connection.aclose()


async def test_a_cancelled_server_lets_everything_go(tmp_path: Path) -> None:
    service = l5.NativeService(_handlers.address(), workers=2, keep_alive=_handlers.library())
    with anyio.CancelScope() as scope:
        async with l5.serve(service, f"l5+unix://{tmp_path}/s.sock") as server:
            connections = [await l5.connect(server.urls[0]) for _ in range(3)]
            for connection in connections:
                assert await connection.request(b"e") == b"e"
            scope.cancel()
            await anyio.sleep_forever()
    assert service.statistics().connections == 0
    for connection in connections:
        with pytest.raises(anyio.BrokenResourceError):
            await connection.request(b"e")
        await connection.aclose()


CLIENT = """
import sys, anyio, l5

async def main(url, request):
    connection = await l5.connect(url)
    print(connection.transport, await connection.request(b"e"), flush=True)
    if request:
        await connection.request(bytes.fromhex(request))
    await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("mode", ["poll", "event", "adaptive"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "receiving"])
async def test_a_killed_client_is_noticed(tmp_path: Path, mode: str, busy: bool) -> None:
    async with serving(tmp_path, mode) as (url, service):
        request = command("n", 60 << 20).hex() if busy else ""
        arguments = [sys.executable, "-c", CLIENT, url, request]
        async with await anyio.open_process(arguments, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            output = BufferedByteReceiveStream(process.stdout)
            assert await output.receive_until(b"\n", 100) == b"shm b'e'"
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await until(lambda: not service.statistics().connections)
        await until(lambda: service.statistics().stored_bytes == 0)
        assert service.statistics().faults == 0
