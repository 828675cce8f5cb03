"""A process ends with connections open, in every way: the other end notices, and nobody crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import l5
from l5 import native

ROOT = Path(__file__).parent.parent.parent
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

# How it ends: exit status, the last line on its standard error, what the other end is told.
ENDS = {
    "return": (0, "", anyio.EndOfStream),
    "sys.exit": (3, "", anyio.EndOfStream),
    "exception": (1, "RuntimeError: on purpose", anyio.EndOfStream),
    "os._exit": (4, "", anyio.BrokenResourceError),
    "daemon": (0, "", anyio.BrokenResourceError),
    "finaliser": (0, "", anyio.EndOfStream),
    "atexit": (0, "closed at exit", anyio.EndOfStream),
}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both processes run on the same loop; uvloop adds nothing to how a process ends."""
    return request.param


def check_words(how: str, status: int | None, words: str) -> None:
    expected, last, _ = ENDS[how]
    assert status == expected, words
    lines = words.splitlines()
    # An exception in a task group of the server's is shown within the group's tree.
    assert last in (lines or [""])[-1] or any(line.endswith(last) for line in lines), words
    if how != "exception":
        assert words == (last + "\n" if last else ""), "nothing more is printed at the end"


@pytest.mark.parametrize("how", ENDS)
async def test_a_client_ends(tmp_path: Path, how: str, anyio_backend: str) -> None:
    ended: list[type[Exception]] = []

    async def on_connection(connection: l5.Connection) -> None:
        try:
            await connection.send((await connection.receive()).upper())
            while True:
                await connection.receive()
        except Exception as error:
            ended.append(type(error))

    async with l5.serve(on_connection, f"l5+shm://{tmp_path}/s", per="connection") as server:
        command = [sys.executable, "-m", "tests.process._leaver", anyio_backend, "client", how]
        done = await anyio.run_process([*command, server.urls[0]], cwd=ROOT, check=False)
        check_words(how, done.returncode, done.stderr.decode())
        while not ended:
            await anyio.sleep(0.001)
        assert ended == [ENDS[how][2]]


@pytest.mark.parametrize("how", ENDS)
async def test_a_server_ends(tmp_path: Path, how: str, anyio_backend: str) -> None:
    command = [sys.executable, "-m", "tests.process._leaver", anyio_backend, "server", how]
    process = subprocess.Popen(
        [*command, f"l5+shm://{tmp_path}/s"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        async with await l5.connect(url) as client:
            await client.send(b"hello")
            assert await client.receive() == b"HELLO"
            with pytest.raises(ENDS[how][2]):
                await client.receive()
        words = await anyio.to_thread.run_sync(process.stderr.read)
        check_words(how, process.wait(), words)


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3), KeyboardInterrupt()])
async def test_an_error_in_the_block_of_a_server_is_not_put_into_a_group(
    tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        async with l5.serve(bytes.upper, f"l5+unix://{tmp_path}/s") as server:
            async with await l5.connect(server.urls[0]) as client:
                assert await client.request(b"x") == b"X"
                raise error
    assert caught.value is error


async def test_a_cancelled_block_of_a_server_is_just_cancelled(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with l5.serve(bytes.upper, f"l5+unix://{tmp_path}/s"):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()
