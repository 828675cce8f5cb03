"""The second machine: serves over RDMA, and does what the first one's tests ask for.

Everything is served by one process, as starting another takes seconds under emulation. Port
CONTROL takes one line a connection, a shell command of this machine, and answers with its status
and output; `spawn` starts a server of its own on port MORTAL, which can be killed, `counters` tells
what the echo's end of each connection did.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import anyio
import attrs
from anyio.abc import ByteStream

import l5
from catfish_app import RTree, serve_tree
from l5.rdma import available, verbs

ECHO, TREE, MORTAL, CONTROL = 7001, 7002, 7003, 7000
LINE_MAX = 4096
# Emulated processors are slow, and the host may be busy.
PATIENT = {"insecure": True, "hello_timeout": 60.0}


def be_patient() -> None:
    """Have connections of this process wait longer for acknowledgements: half a second, not 67 ms.

    An emulated processor may stand still for that long, and what is sent again is counted, too.
    """
    verbs.agree = functools.partial(verbs.agree, timeout=17)


def url(port: int) -> str:
    """An address of this machine."""
    return f"l5://{os.environ['SOFTROCE_ADDR']}:{port}"


def reverse(request: bytes) -> bytes:
    """Answer with the request's bytes in reverse, so that an echo of memory is no answer."""
    return bytes(request)[::-1]


def control_of(echo: l5.Server) -> Callable[[ByteStream], Awaitable[None]]:
    """What runs one command."""

    async def control(stream: ByteStream) -> None:
        async with stream:
            line = (await stream.receive(LINE_MAX)).decode().strip()
            if line == "spawn":
                child = subprocess.Popen([sys.executable, "-m", __spec__.name, "mortal"])
                answer = f"0 {child.pid}"
            elif line == "counters":
                ends = [session.channel.counters for session in echo._sessions]
                answer = f"0 {json.dumps([attrs.asdict(end) for end in ends])}"
            else:
                done = await anyio.run_process(["/bin/sh", "-c", line], check=False)
                answer = f"{done.returncode} {(done.stdout + done.stderr).decode()}"
            await stream.send(answer.encode())

    return control


async def serve_all() -> None:
    """Serve until the machine ends."""
    available()
    async with (
        l5.serve(reverse, url(ECHO), **PATIENT) as echo,
        serve_tree(RTree(capacity=4096), url(TREE), **PATIENT),
        await anyio.create_tcp_listener(local_port=CONTROL) as listener,
    ):
        await listener.serve(control_of(echo))


async def serve_mortal() -> None:
    """Serve until killed."""
    async with l5.serve(reverse, url(MORTAL), **PATIENT):
        await anyio.sleep_forever()


if __name__ == "__main__":
    be_patient()
    anyio.run(serve_mortal if sys.argv[1:] == ["mortal"] else serve_all)
