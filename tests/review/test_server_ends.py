"""A server that stops, and one that cannot start, leave nothing behind and do not wait for it."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
import l5.blocking
from l5 import native
from l5._hello import Reject, encode
from tests.connection._raw import Peer, ask, client_hello, raw, read_hello
from tests.pure._hellos import LIMITS

pytestmark = pytest.mark.anyio


async def echo(request: bytes) -> bytes:
    return request


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_a_native_service_that_does_not_start_leaves_the_address_free(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    service = l5.NativeService(16)  # never called
    service.start()
    try:
        with pytest.raises(RuntimeError, match="one server at a time"):
            async with l5.serve(service, url):
                pass
    finally:
        await service.stop()
    async with l5.serve(echo, url), await l5.connect(url) as connection:
        assert await connection.request(b"x") == b"x"


async def test_drain_ends_with_the_last_queued_request(tmp_path: Path) -> None:
    """Requests that run without suspending, one after another, while the server stops."""
    count = 60
    queued_at_stop = 0
    stopping = False

    def handle(request: bytes) -> bytes:
        nonlocal stopping
        if not stopping and len(workers._ready) > count // 2:
            stopping = True
            group.start_soon(stop)
        if not queued_at_stop:
            workers._hub.streak = 1000  # the event loop runs after each, until `stop` does
        return request

    async def stop() -> None:
        nonlocal queued_at_stop
        queued_at_stop = len(workers._ready)
        assert not workers.running
        await server.stop(grace=600)

    with anyio.fail_after(60):
        async with l5.serve(handle, f"l5+unix://{tmp_path}/s") as server:
            workers: Any = server._workers
            async with raw(server.urls[0]) as stream, anyio.create_task_group() as group:
                await stream.send(encode(client_hello(offers=[])))
                await read_hello(stream)
                while not server._sessions:
                    await anyio.sleep(0.01)
                for session in server._sessions:
                    # From a ring or a lane the leader would take one at a time: of a socket all
                    # are queued, as one piece of the stream brings them.
                    if session.lane is not None:
                        session.lane.aside = 1
                await stream.send(b"".join(ask(n, b"%d" % n) for n in range(1, count + 1)))
                answers = await Peer(stream).answers(count)
    assert queued_at_stop and answers == [(n, b"%d" % n) for n in range(1, count + 1)]


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_a_credit_below_a_segment_is_named(tmp_path: Path) -> None:
    """By servers of a native service as by others."""
    import msgspec

    limits = msgspec.structs.replace(LIMITS, segment_bytes=4096, credit_bytes=4095)
    for handler in (echo, l5.NativeService(16)):  # never called
        async with l5.serve(handler, f"l5+unix://{tmp_path}/s") as server:
            async with raw(server.urls[0]) as stream:
                await stream.send(encode(client_hello(limits=limits)))
                answer = await read_hello(stream)
            assert isinstance(answer, Reject)
            assert answer.code == "malformed" and "credit_bytes of 4095" in answer.message


@pytest.mark.parametrize("per", ["request", "connection"])
def test_what_cannot_be_called_is_no_handler(per: Any) -> None:
    """It is an error where the server is written, and not each client's."""
    for serve in (l5.serve, l5.blocking.serve):
        with pytest.raises(TypeError, match=r"a handler is .*function of a .*, not 'a word'"):
            serve("a word", "l5+inproc://never", per=per)  # type: ignore[call-overload]


async def test_a_closed_connection_says_who_closed_it(tmp_path: Path) -> None:
    async with l5.serve(bytes.upper, f"l5+unix://{tmp_path}/s") as server:
        connection = await l5.connect(server.urls[0])
        await connection.aclose()
        for call in (connection.request, connection.send):
            with pytest.raises(anyio.ClosedResourceError, match="this side has closed"):
                await call(b"x")
        with pytest.raises(anyio.ClosedResourceError, match="this side has closed"):
            await connection.receive()
