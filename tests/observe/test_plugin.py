"""The plugin's server and its faults, as an adopter's tests use them."""

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
MODULE = """
import anyio, pytest, l5
pytestmark = pytest.mark.anyio


async def test_every_transport(l5_server, l5_transport):
    async with l5_server(bytes.upper, l5_transport) as server:
        async with await l5.connect(server.url) as conn:
            assert conn.transport == l5_transport
            assert await conn.request(b"a") == b"A"
            assert server.requests == 1


async def test_faults(l5_server):
    async with l5_server(bytes.upper) as server:
        async with await l5.connect(server.url) as conn:
            server.faults.silent = True
            with pytest.raises(l5.DeadlineExceeded):
                await conn.request(b"a", deadline=0.02)
            server.faults.silent = False
            server.faults.error = ValueError("no")
            with pytest.raises(l5.RequestFailed, match="no"):
                await conn.request(b"a")
            server.faults.error = None
            server.faults.delay_s = 60.0
            with pytest.raises(l5.DeadlineExceeded):
                await conn.request(b"a", deadline=0.02)
            server.faults.delay_s = 0.0
            assert await conn.request(b"a") == b"A"
            server.faults.cut_after = server.requests
            with pytest.raises(anyio.BrokenResourceError):
                await conn.request(b"a")
        server.faults.cut_after = None
        async with await l5.connect(server.url) as conn:
            assert await conn.request(b"again") == b"AGAIN"


async def test_refusals(l5_server):
    async with l5_server(bytes.upper, upgrade=False) as server:
        async with await l5.connect(server.url) as conn:
            assert conn.transport == "unix" and "shm" in str(conn.upgrade_report)
    async with l5_server(bytes.upper, admit=False) as server:
        with pytest.raises(l5.ConnectError):
            await l5.connect(server.url)
    with pytest.raises(ValueError, match="expected one of"):
        async with l5_server(bytes.upper, "pigeon"):
            pass
"""


def test_an_adopter_uses_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    (tmp_path / "conftest.py").write_text(
        "from l5.testing.plugin import anyio_backend as anyio_backend"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "l5.testing.plugin", "test_it.py"]
    alone = ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", "."]
    done = subprocess.run(
        [*command, *alone],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 passed" in done.stdout and "warning" not in done.stdout
