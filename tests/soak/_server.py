"""A server process of a soak: ``python -m tests.soak._server PLAN``."""

from __future__ import annotations

import ctypes
import json
import random
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel

import l5

from . import _sabotage
from ._ask import handler_of
from ._process import Plan, Process, check_holdings, holdings
from ._talk import Talk, fork
from ._text import DATA, TEXT_BYTES, Incoming, Outgoing, Wrong

LIMITS: dict[str, Any] = {
    "max_message_bytes": 8 << 20,
    "reassembly_bytes": 16 << 20,
    "total_reassembly_bytes": 24 << 20,
    "in_flight_max": 8,
    "data_window_bytes": 256 << 10,
    "credit_bytes": 512 << 10,
    "hello_timeout": 120.0,  # how slow the machine is, is not what a soak is about
    "stall_timeout": 120.0,
    "grace": 2.0,
}


class State(ctypes.Structure):
    """The state of `handler.c`."""

    _fields_ = (
        ("text", ctypes.c_void_p),
        ("text_bytes", ctypes.c_uint64),
        ("corrupt", ctypes.c_uint64),
    )


def native_service(process: Process, library: str) -> tuple[l5.NativeService, State]:
    """Return a service over the handler in C."""
    size = TEXT_BYTES
    buffer = (ctypes.c_char * size).from_buffer_copy(process.text.view)
    state = State(ctypes.addressof(buffer), size, 0)
    loaded = ctypes.CDLL(library)
    address = ctypes.cast(loaded.answer, ctypes.c_void_p).value
    mode = process.rng.choice(("event", "adaptive"))
    service = l5.NativeService(
        address,
        ctypes.addressof(state),
        workers=2,
        mode=mode,
        keep_alive=(buffer, state, loaded),
        max_stored_bytes=64 << 20,
    )
    return service, state


class Talker:
    """The handler of connections with plain messages."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._number = 0

    async def talk(self, connection: l5.Connection) -> None:
        """Take the client's messages and send it some, until both have said everything."""
        process = self._process
        self._number += 1
        process.board.count(connections=1)
        with process.board.waiting(f"first message, over {connection.transport}"):
            message = await connection.receive()
        try:
            head = process.text.check(message, DATA)
            incoming = Incoming(head.stream)
            incoming.take(head)
        except Wrong as error:
            process.wrong(f"a first message: {error}")
            return
        rng = random.Random(f"{process.plan.seed} {head.stream} server")
        count = 2 + int(30 * rng.random() ** 2)
        peer = f"c{head.stream >> 48}.{(head.stream >> 32) & 0xFFFF}"
        outgoing = Outgoing(head.stream)
        talk = Talk(process, connection, peer, rng, outgoing, incoming, count)
        if rng.random() < 0.03:
            fork(process, connection, rng)
        with anyio.move_on_after(rng.random() * 2 if rng.random() < 0.1 else None):
            await talk.run()
        with process.board.waiting(f"close {talk.label}"):
            await connection.aclose()


async def serve(process: Process) -> None:
    """Serve until the soak ends, or the referee sends SIGTERM, then look for leaks."""
    plan = process.plan
    mine = plan.servers[plan.slot]
    state = None
    options = dict(LIMITS)
    if mine["kind"] == "talk":
        handler: Any = Talker(process).talk
        options["per"] = "connection"
    elif mine["kind"] == "native":
        handler, state = native_service(process, mine["library"])
    else:
        handler = handler_of(process, mine["kind"])
    await anyio.lowlevel.checkpoint()
    before = holdings()
    server = await _open(process, handler, mine["urls"], options)
    try:
        process.log(what="up")
        await _until_told(process)
        process.log(what="closing")
        with process.board.waiting("its own end: Server.stop"):
            await server.stop(2.0)
    finally:
        with process.board.waiting("its own end"):
            await server.__aexit__(None, None, None)
    if state is not None and state.corrupt:
        process.wrong(f"{state.corrupt} requests reached the handler in C corrupt")
    await check_holdings(process, before, f"after {server.statistics()}")


async def _open(process: Process, handler: Any, urls: list[str], options: Any) -> l5.Server:
    """Open the server; the one before it, just killed, may not be quite gone yet."""
    until = time.monotonic() + 20
    while True:
        server = l5.serve(handler, *urls, **options)
        try:
            with process.board.waiting("its addresses"):
                return await server.__aenter__()
        except OSError:
            if time.monotonic() > until:
                raise
            with suppress(BaseException):
                await server.__aexit__(None, None, None)
            await anyio.sleep(0.1)


async def _until_told(process: Process) -> None:
    told = False

    def on_signal(*_: object) -> None:
        nonlocal told
        told = True

    signal.signal(signal.SIGTERM, on_signal)
    while not told and not process.board.closing:
        await anyio.sleep(0.05)


def main() -> None:
    """Run a server process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    process = Process(Plan(**json.loads(sys.argv[1])))
    _sabotage.commit(process.plan.sabotage)
    process.run(lambda: serve(process))


if __name__ == "__main__":
    main()
