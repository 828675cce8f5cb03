"""`l5`: an echo server for each request, in Python or in C."""

import ctypes
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import l5
from benchmarks.messaging_peers.loops import Request

PATIENT: dict[str, Any] = {"hello_timeout": 60.0, "connect_timeout": 60.0}
"""Many processes begin at once, beside workers that spin: the machine may leave one waiting."""


async def echo(request: bytes) -> bytes:
    return request


def url(address: str, options: dict[str, Any]) -> str:
    return "l5://127.0.0.1:0" if options.get("over") == "tcp" else f"l5+unix://{address}"


def keywords(options: dict[str, Any]) -> dict[str, Any]:
    """Return what is given to both ends; a transport that is not "shm" is to stay a socket."""
    known = ("ring", "segment", "spin_us", "token", "transports")
    given = {key: options[key] for key in known if options.get(key) is not None}
    return PATIENT | given


@asynccontextmanager
async def server(address: str, options: dict[str, Any]) -> AsyncGenerator[str]:
    handler: Any = echo
    if "library" in options:
        library = ctypes.CDLL(options["library"])
        at = ctypes.cast(library.echo, ctypes.c_void_p).value
        handler = l5.NativeService(at, keep_alive=library)
    async with l5.serve(handler, url(address, options), **keywords(options)) as running:
        yield running.urls[0]


@asynccontextmanager
async def client(address: str, options: dict[str, Any]) -> AsyncGenerator[Request]:
    async with await l5.connect(address, **keywords(options)) as connection:
        expect_transport(connection, options)
        yield connection.request


def expect_transport(connection: l5.Connection, options: dict[str, Any]) -> None:
    wanted = options.get("transports", "shm")
    if connection.transport != wanted:
        raise RuntimeError(f"meant to measure {wanted}: {connection.upgrade_report}")
