"""One end in a box: ``python -m tests.containers._end server|client URL OPTIONS``; speaks JSON.

A server says ``{"at": url}`` and serves until its standard input ends; then it says what its
connections were.  A client connects, asks once and says what it found.  With the option ``stay``
it waits until the connection ends and says how; with ``heir`` it kills itself and leaves a process
that holds its descriptors, and so does a server after its first answer.  With ``devour`` a
client takes so many bytes of memory.  With ``tell_ends`` a server says how each connection ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import anyio
import anyio.to_thread

import l5
from tests._patience import be_patient


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def input_ends() -> None:
    await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


def facts_of(connection: l5.Connection) -> dict[str, Any]:
    peer = connection.peer
    reasons = dict(connection.upgrade_report.reasons)
    return {
        "transport": connection.transport,
        "declined": reasons,
        "report": str(connection.upgrade_report),
        "peer": [peer.uid, peer.pid],
        "self": [os.geteuid(), os.getpid()],
        "namespaces": {
            name: os.stat(f"/proc/self/ns/{name}").st_ino
            for name in ("user", "pid", "ipc", "mnt", "net", "uts", "cgroup")
        },
    }


def leave_heir() -> int:
    """Start a process that holds all our descriptors; no hook of fork runs on this way."""
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), int(name) > 2)
        except OSError:
            pass  # the descriptor that listed the folder
    return subprocess.Popen(
        ["sleep", "60"], close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ).pid


def die_with_heir() -> None:
    say(heir=leave_heir())
    os.kill(os.getpid(), signal.SIGKILL)


async def serve(url: str, options: dict[str, Any]) -> None:
    seen: list[dict[str, Any]] = []
    tell_ends, heir = options.pop("tell_ends", False), options.pop("heir", False)

    async def on_connection(connection: l5.Connection) -> None:
        seen.append(facts_of(connection))
        try:
            while True:
                await connection.send((await connection.receive()).upper())
                if heir:
                    die_with_heir()
        except Exception as error:
            if tell_ends:
                say(ended=type(error).__name__)

    async with l5.serve(on_connection, url, per="connection", **options) as server:
        say(at=server.urls[0])
        await input_ends()
        open_now = server.statistics().connections
    say(seen=seen, open=open_now)


async def connect(url: str, options: dict[str, Any]) -> None:
    stay, heir = options.pop("stay", False), options.pop("heir", False)
    devour = options.pop("devour", 0)
    try:
        connection = await l5.connect(url, **options)
    except l5.ConnectError as error:
        say(error=str(error))
        return
    async with connection:
        await connection.send(b"hello")
        answer = (await connection.receive()).decode()
        say(answer=answer, **facts_of(connection))
        if heir:
            die_with_heir()
        if devour:
            b"x" * devour  # every page of it
        if stay:
            try:
                await connection.receive()
            except Exception as error:
                say(ended=type(error).__name__)


if __name__ == "__main__":
    be_patient()
    role = serve if sys.argv[1] == "server" else connect
    anyio.run(role, sys.argv[2], json.loads(sys.argv[3]))
