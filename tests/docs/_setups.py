"""What the fragments of a page take for granted: servers, connections, data.

An entry is an async context manager that takes the page's `Shell` and yields names. A page asks for
it by ``<!-- setup: name -->``; `PAGES` says what a page gets from its beginning.
"""

import importlib.util
import runpy
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from setuptools import Extension

import l5
import l5.blocking
from tests.docs._shell import Shell

ROOT = Path(__file__).parent.parent.parent
Setup = Callable[[Shell], AbstractAsyncContextManager[dict[str, Any]]]


async def answer(request: bytes) -> bytes:
    """Echo, but for two requests that the pages use."""
    if request == b"fail":
        raise ValueError("you asked for it")
    if request == b"slow":
        await anyio.sleep_forever()
    return request


@asynccontextmanager
async def echo(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Serve echoes at the URLs that pages use; `conn` is connected."""
    urls = [shell.localise(url) for url in ("l5://127.0.0.1:7471", "l5+unix:///run/echo.sock")]
    async with l5.serve(answer, *urls), await l5.connect(urls[1]) as conn:
        yield {"anyio": anyio, "l5": l5, "conn": conn}


@asynccontextmanager
async def talk(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Connect `conn` to a server that sends every message back."""

    async def send_back(conn: l5.Connection) -> None:
        async for message in conn:
            await conn.send(message)

    url = shell.localise("l5+unix:///run/talk.sock")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(l5.serve(send_back, url, per="connection"))
        conn = await stack.enter_async_context(await l5.connect(url))
        yield {"anyio": anyio, "l5": l5, "conn": conn}


@asynccontextmanager
async def server(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Only what has been imported already."""
    yield {"anyio": anyio, "l5": l5}


@asynccontextmanager
async def pages(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """A `server`, and a connection to it."""
    url = shell.localise("l5+unix:///run/pages.sock")
    async with l5.serve(answer, url) as running, await l5.connect(url) as conn:
        yield {"l5": l5, "server": running, "conn": conn}


@asynccontextmanager
async def threads(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Serve echoes in threads; `conn` is a blocking connection to them."""
    url = shell.localise("l5+unix:///run/threads.sock")
    with l5.blocking.serve(bytes, url, threads=2) as running:
        with l5.blocking.connect(running.urls[0]) as conn:
            yield {"l5": l5, "conn": conn}


@asynccontextmanager
async def histogram(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Build the extension of examples/native_service."""
    runpy.run_path(str(ROOT / "examples/native_service/build.py"))["build"](shell.folder)
    [path] = shell.folder.glob("histogram*.so")
    spec = importlib.util.spec_from_file_location("histogram", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield {"l5": l5, "histogram": module, "Extension": Extension}


@asynccontextmanager
async def region(shell: Shell) -> AsyncIterator[dict[str, Any]]:
    """Open `region`: seven nodes of a binary tree at 64, 128, ..."""
    url = shell.localise("l5+unix:///run/region.sock")
    with l5.Region.create(4096) as owned:
        for node in range(1, 4):
            owned.write(node * 64, struct.pack("<QQ", 2 * node * 64, (2 * node + 1) * 64))
        async with l5.serve(answer, url) as running, await l5.connect(url) as conn:
            running.export("tree", owned)
            names = {"l5": l5, "struct": struct, "url": url}
            yield names | {"region": await conn.open_region("tree")}


SETUPS: dict[str, Setup] = {"echo": echo, "talk": talk, "server": server}
SETUPS |= {"region": region, "pages": pages, "threads": threads, "histogram": histogram}
PAGES = {"native-services.md": "histogram"}
