"""Leave with a connection open: ``python -m tests.process._leaver BACKEND ROLE HOW URL``.

A client connects and asks once; a server (which prints its URL) answers once.  Then they leave.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import anyio

import l5
from tests._patience import be_patient

KEPT: list[object] = []


class Finaliser:
    """Uses a connection when the interpreter takes its modules apart."""

    def __init__(self, connection: l5.Connection) -> None:
        self._connection = connection
        self._circle = self  # so that the last collection finds it, and nothing before

    def __del__(self) -> None:
        coroutine = self._connection.send(b"from the grave")
        try:
            coroutine.send(None)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, StopIteration):
            pass
        finally:
            coroutine.close()


def at_exit(connection: l5.Connection) -> None:
    """Close by hand, in a new event loop, what the old one left open."""

    async def close() -> None:
        await connection.aclose()

    anyio.run(close)
    print("closed at exit", file=sys.stderr)


def leave_now(connection: l5.Connection) -> NoReturn:
    os._exit(4)


def leave_by_exit(connection: l5.Connection) -> NoReturn:
    sys.exit(3)


def leave_by_error(connection: l5.Connection) -> NoReturn:
    raise RuntimeError("on purpose")


def keep(connection: l5.Connection) -> None:
    KEPT.append(connection)


WAYS: dict[str, Callable[[l5.Connection], None]] = {
    "return": keep,
    "sys.exit": leave_by_exit,
    "os._exit": leave_now,
    "exception": leave_by_error,
    "finaliser": lambda connection: KEPT.append(Finaliser(connection)),
    "atexit": lambda connection: KEPT.append(atexit.register(at_exit, connection)),
}


async def client(how: str, url: str) -> None:
    connection = await l5.connect(url)
    await connection.send(b"hello")
    assert await connection.receive() == b"HELLO"
    if how == "daemon":
        READY.set()
        await connection.receive()
    WAYS[how](connection)


async def server(how: str, url: str) -> None:
    left = anyio.Event()
    connections: list[l5.Connection] = []

    async def on_connection(connection: l5.Connection) -> None:
        await connection.send((await connection.receive()).upper())
        if how == "daemon":
            READY.set()
            await connection.receive()
        connections.append(connection)
        left.set()
        await anyio.sleep_forever()

    async with l5.serve(on_connection, url, per="connection", grace=0) as running:
        print(running.urls[0], flush=True)
        await left.wait()
        WAYS[how](connections[0])


READY = threading.Event()


def main(backend: str, role: str, how: str, url: str) -> None:
    run = client if role == "client" else server
    if how == "daemon":
        arguments = (run, how, url)
        thread = threading.Thread(target=anyio.run, args=arguments, kwargs={"backend": backend})
        thread.daemon = True
        thread.start()
        READY.wait()
        return
    anyio.run(run, how, url, backend=backend)


if __name__ == "__main__":
    be_patient()
    main(*sys.argv[1:])
