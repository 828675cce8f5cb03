"""A forked child finds its connections closed, with a clear error; the parent's are untouched."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import l5

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["unix", "shm"])
def test_fork_after_connect(tmp_path: Path, backend: str, kind: str) -> None:
    facts = anyio.run(_fork, f"l5+{kind}://{tmp_path}/s?transports={kind}", backend)
    assert facts["sound"]
    assert facts["before"]["mapped"] is (kind == "shm")
    child = facts["child"]
    assert child["mapped"] is False
    assert child["sockets"] < facts["before"]["sockets"]
    for name, (error, text) in child["found"].items():
        assert error == "ClosedResourceError", (name, error, text)
        assert "fork" in text, (name, text)


async def _fork(url: str, backend: str) -> dict:
    async def handle(request: bytes) -> bytes:
        return request

    async with l5.serve(handle, url):
        command = [sys.executable, "-m", "tests.process._forker", backend, url]
        done = await anyio.run_process(command, cwd=ROOT, stderr=None)
        return json.loads(done.stdout)


def test_forking_in_a_server(tmp_path: Path) -> None:
    """A child of the server does not answer for it, and does not remove its socket."""
    program = f"""
import os, anyio, l5
async def handle(request):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return request
async def main():
    async with l5.serve(handle, "l5+unix://{tmp_path}/s"):
        async with await l5.connect("l5+unix://{tmp_path}/s") as client:
            for _ in range(20):
                assert await client.request(b"x") == b"x"
        assert os.path.exists("{tmp_path}/s")
for backend in ("asyncio", "trio"):
    anyio.run(main, backend=backend)
print("sound")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sound\n"
