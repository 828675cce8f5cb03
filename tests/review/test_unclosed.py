"""Connections that nobody closed, and connections in the wrong thread."""

import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import l5
from l5 import native

ABANDON = """
import anyio, l5, sys

async def echo(payload):
    return payload

async def main():
    global server, connection
    server = l5.serve(echo, sys.argv[1])
    async with server:
        connection = await l5.connect(sys.argv[1])
        await connection.request(b"x")

anyio.run(main)
"""


@pytest.mark.parametrize("transport", ["unix", "shm"])
def test_an_interpreter_that_ends_with_one_says_only_that(tmp_path: Path, transport: str) -> None:
    url = f"l5+{transport}://{tmp_path}/s"
    ran = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", ABANDON, url],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0
    assert "Exception ignored" not in ran.stderr and "Error" not in ran.stderr


@pytest.mark.anyio
@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_another_thread_is_told_whose_the_connection_is() -> None:
    async def echo(payload: bytes) -> bytes:
        return payload

    async def elsewhere(connection: l5.Connection) -> str:
        with pytest.raises(anyio.BusyResourceError) as caught:
            await connection.request(b"x")
        return str(caught.value)

    with tempfile.TemporaryDirectory() as path:
        url = f"l5+shm://{Path(path) / 's'}"
        async with l5.serve(echo, url), await l5.connect(url) as connection:
            text = await anyio.to_thread.run_sync(anyio.run, elsewhere, connection)
            assert text == (
                "Another task is already using (in its event loop's thread, to which a connection "
                "belongs) this resource"
            )
            assert await connection.request(b"sound") == b"sound"
