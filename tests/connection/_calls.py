"""What requests over sockets cost in system calls: ``python -m tests.connection._calls KIND LOOP``.

Both ends are processes with a library preloaded that counts; the server tells its counts when it
is asked.  With a third argument the server tells every so many ms, too, how busy it is.
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
from tests._patience import be_patient

NAMES = ("recv", "send", "sendmsg", "epoll_wait", "epoll_ctl", "read", "write")
REQUESTS = 200
COUNT = b"count"


def counts() -> list[int]:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.calls_of.restype = ctypes.c_uint64
    return [library.calls_of(number) for number in range(len(NAMES))]


async def handle(request: bytes) -> bytes:
    return json.dumps(counts()).encode() if request == COUNT else request


async def serve(url: str, kind: str, heartbeat_ms: int) -> None:
    async with l5.serve(handle, url, transports=kind, heartbeat_ms=heartbeat_ms) as server:
        print(server.urls[0], flush=True)
        await anyio.sleep_forever()


async def ask(url: str, kind: str, heartbeat_ms: int) -> None:
    told = {"transports": kind, "heartbeat_ms": heartbeat_ms}
    async with await l5.connect(url, **told) as connection:
        for _ in range(20):
            await connection.request(b"warm")
        heard = connection.heartbeat.sequence
        theirs, ours = json.loads(await connection.request(COUNT)), counts()
        for _ in range(REQUESTS):
            await connection.request(b"x" * 64)
            if heartbeat_ms:
                await anyio.sleep(heartbeat_ms / 1000)
        ours = [now - then for now, then in zip(counts(), ours, strict=True)]
        theirs_now = json.loads(await connection.request(COUNT))
        theirs = [now - then for now, then in zip(theirs_now, theirs, strict=True)]
        heard = connection.heartbeat.sequence - heard
        for side, numbers in (("client", ours), ("server", theirs)):
            told = {name: n / REQUESTS for name, n in zip(NAMES, numbers, strict=True)}
            print(json.dumps({"side": side, "heard": heard / REQUESTS, **told}))


def main(kind: str, loop: str, beat: str = "0") -> None:
    if "://" in kind:
        over = "tcp" if kind.startswith("l5://") else "unix"
        anyio.run(serve, kind, over, int(beat), backend=loop)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = "l5://127.0.0.1:0" if kind == "tcp" else f"l5+unix://{folder}/s"
        command = [sys.executable, "-m", "tests.connection._calls", url, loop, beat]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                found = server.stdout.readline().strip()
                anyio.run(ask, found, kind, int(beat), backend=loop)
            finally:
                server.kill()


if __name__ == "__main__":
    be_patient()
    main(*sys.argv[1:])
