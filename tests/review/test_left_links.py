"""Sockets that nobody uses any more are closed, whoever was the last to hold them."""

import gc
import os
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import l5
import l5.blocking
from l5 import _host, native
from l5._bootstrap import HelloLink
from l5._hello import Attach, Hello, ServerHello, Upgrade, Upgraded, encode
from tests.connection._raw import NOT_UPGRADED, client_hello, raw, read_hello

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


async def echo(request: bytes) -> bytes:
    return request


async def test_who_comes_to_the_rendezvous_after_declining_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering, answer = anyio.Event(), anyio.Event()
    send = HelloLink.send

    async def send_late(self: HelloLink, message: Hello, fds: Any = ()) -> None:
        if isinstance(message, Upgraded):
            answering.set()
            await answer.wait()
        await send(self, message, fds)

    monkeypatch.setattr(HelloLink, "send", send_late)
    offers = [{"transport": "shm", "params": {"ring_bytes": 1 << 20, "page_bytes": 4096}}]
    hello = client_hello(host=_host.prove(), offers=offers)
    hello = msgspec.convert(msgspec.to_builtins(hello), type(hello))
    with anyio.fail_after(60):
        async with l5.serve(echo, "l5://127.0.0.1:0", hello_timeout=60) as server:
            async with raw(server.urls[0]) as stream:
                await stream.send(encode(hello))
                told = await read_hello(stream)
                assert isinstance(told, ServerHello) and told.rendezvous and told.ticket
                await stream.send(encode(Upgrade(transport=NOT_UPGRADED)))
                await answering.wait()
                async with raw(f"l5+unix://{told.rendezvous}") as link:
                    await link.send(encode(Attach(ticket=told.ticket)))
                    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                        await link.receive()
                answer.set()
                assert isinstance(await read_hello(stream), Upgraded)


def is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def drop_while_it_spins(poller: Any, kept: list[Any], seen: Sequence[Any]) -> None:
    while not poller.spinning and not seen:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kept.clear()
        gc.collect()


def slow_echo(request: bytes) -> bytes:
    time.sleep(0.005)
    return bytes(request)


@asynccontextmanager
async def threads(url: str) -> AsyncGenerator[None]:
    """Serve `url` in threads: for a peer in the same event loop nobody spins."""
    server = l5.blocking.serve(slow_echo, url)
    await anyio.to_thread.run_sync(server.__enter__)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.__exit__, None, None, None)


async def test_a_connection_collected_while_its_loop_spins_is_closed(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s?spin_us=10000"
    seen: list[bool] = []
    async with threads(url), await l5.connect(url) as other:
        kept = [await l5.connect(url)]
        session: Any = kept[0]._session
        poller, fd = session.hub.poller, session.fds()[0]
        inode = os.fstat(fd).st_ino
        del session
        thread = threading.Thread(target=drop_while_it_spins, args=(poller, kept, seen))
        thread.start()
        try:
            with anyio.fail_after(60):
                while thread.is_alive() or is_open(fd, inode):
                    poller.yield_only = 0
                    assert await other.request(b"sound") == b"sound"
        finally:
            seen.append(True)
            thread.join()
        assert await other.request(b"sound") == b"sound"
