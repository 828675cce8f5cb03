"""A peer to be killed: ``python -m tests.process._peer ROLE URL``; says what it does on stdout.

Servers: ``serve`` answers requests (`wait` for ever), ``sink`` receives, ``clog`` accepts and does
nothing, ``talk`` sends.  Clients: ``idle``, ``send``, ``receive``, ``request``.  With ``+heir``, a
process that inherits every descriptor is left behind and outlives the peer.
"""

import os
import subprocess
import sys

import anyio

import l5
from tests._patience import be_patient


def say(text: str) -> None:
    print(text, flush=True)


def leave_heir() -> None:
    """Start a process that holds all our descriptors; no hook of fork runs on this way."""
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), int(name) > 2)
        except OSError:
            pass  # the descriptor that listed the folder
    heir = subprocess.Popen(
        ["sleep", "60"], close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    say(f"heir {heir.pid}")


async def handle(request: bytes) -> bytes:
    if request == b"wait":
        say("waiting")
        await anyio.sleep_forever()
    return request


async def use(connection: l5.Connection, role: str) -> None:
    if role == "send":
        while True:
            await connection.send(bytes(1000))
    if role == "receive":
        while True:
            await connection.receive()
    if role == "request":
        await connection.request(b"wait")
    await anyio.sleep_forever()


async def run_server(role: str, url: str, heir: bool) -> None:
    roles = {"sink": "receive", "clog": "idle", "talk": "send"}

    async def on_connection(connection: l5.Connection) -> None:
        say(f"connected {connection.transport}")
        if heir:
            leave_heir()
        await use(connection, roles[role])

    if role == "serve":
        async with l5.serve(handle, url) as server:
            say(f"at {server.urls[0]}")
            await anyio.sleep_forever()
    async with l5.serve(on_connection, url, per="connection") as server:
        say(f"at {server.urls[0]}")
        await anyio.sleep_forever()


async def run_client(role: str, url: str, heir: bool) -> None:
    async with await l5.connect(url) as connection:
        say(f"connected {connection.transport}")
        if heir:
            leave_heir()
        await use(connection, role)


async def main(role: str, url: str) -> None:
    role, _, more = role.partition("+")
    run = run_server if role in ("serve", "sink", "clog", "talk") else run_client
    await run(role, url, more == "heir")


if __name__ == "__main__":
    be_patient()
    anyio.run(main, *sys.argv[1:])
