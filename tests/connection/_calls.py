"""What requests over sockets cost in system calls: ``python -m tests.connection._calls KIND LOOP``.

Both ends are processes with a library preloaded that counts; the server tells its counts when it
is asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile

import anyio

import l5

NAMES = ("recv", "send", "sendmsg", "epoll_wait", "epoll_ctl", "read", "write")
REQUESTS = 200
COUNT = b"count"


def counts() -> list[int]:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.calls_of.restype = ctypes.c_uint64
    return [library.calls_of(number) for number in range(len(NAMES))]


async def handle(request: bytes) -> bytes:
    return json.dumps(counts()).encode() if request == COUNT else request


async def serve(url: str, kind: str) -> None:
    async with l5.serve(handle, url, transports=kind, heartbeat_ms=0) as server:
        print(server.urls[0], flush=True)
        await anyio.sleep_forever()


async def ask(url: str, kind: str) -> None:
    async with await l5.connect(url, transports=kind, heartbeat_ms=0) as connection:
        for _ in range(20):
            await connection.request(b"warm")
        theirs, ours = json.loads(await connection.request(COUNT)), counts()
        for _ in range(REQUESTS):
            await connection.request(b"x" * 64)
        ours = [now - then for now, then in zip(counts(), ours, strict=True)]
        theirs_now = json.loads(await connection.request(COUNT))
        theirs = [now - then for now, then in zip(theirs_now, theirs, strict=True)]
        for side, numbers in (("client", ours), ("server", theirs)):
            told = {name: n / REQUESTS for name, n in zip(NAMES, numbers, strict=True)}
            print(json.dumps({"side": side, **told}))


def main(kind: str, loop: str) -> None:
    if "://" in kind:
        anyio.run(serve, kind, "tcp" if kind.startswith("l5://") else "unix", backend=loop)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = "l5://127.0.0.1:0" if kind == "tcp" else f"l5+unix://{folder}/s"
        command = [sys.executable, "-m", "tests.connection._calls", url, loop]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                anyio.run(ask, server.stdout.readline().strip(), kind, backend=loop)
            finally:
                server.kill()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
