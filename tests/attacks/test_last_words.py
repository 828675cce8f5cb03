"""Who is cut off learns why, and what was sent before a close is not lost with it."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trustme

import l5
from l5 import native
from tests.attacks._actors import ROOT, Stage

pytestmark = pytest.mark.anyio


async def echo(request: bytes) -> bytes:
    return request


# ---- the reason ----------------------------------------------------------------------------------


async def test_plain_data_to_a_request_server(url: str) -> None:
    async with l5.serve(echo, url) as server:
        async with await l5.connect(server.urls[0]) as client:
            await client.send(b"not a request")
            for attempt in (client.receive, lambda: client.request(b"x"), lambda: client.send(b"")):
                with pytest.raises(anyio.BrokenResourceError, match="plain data to a server that"):
                    await attempt()
        async with await l5.connect(server.urls[0]) as other:
            assert await other.request(b"x") == b"x"


async def test_the_reason_comes_through_a_flood(url: str) -> None:
    """The server closes with much unread: over TCP the system would reset the connection."""
    async with l5.serve(echo, url) as server:
        async with await l5.connect(server.urls[0]) as client:
            with pytest.raises(anyio.BrokenResourceError, match="plain data to a server that"):
                for _ in range(2000):
                    await client.send(bytes(1000))
                await client.receive()


async def test_plain_data_to_a_native_service(tmp_path: Path) -> None:
    if not native.available:
        pytest.skip(native.reason)
    from l5._native import ffi  # any function will do: it is never called

    service = l5.NativeService(ffi.cast("void *", 1))
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(service, url):
        async with await l5.connect(url) as client:
            await client.send(b"not a request")
            with pytest.raises(anyio.BrokenResourceError, match="a data message to a service"):
                await client.receive()


async def test_a_server_that_breaks_the_protocol_is_told(url: str) -> None:
    """The other way round: a server that answers what nobody asked."""
    told: list[str] = []

    async def lie(connection: l5.Connection) -> None:
        session: Any = connection._session
        session.try_frame(3, 0, 99, b"an answer")
        with pytest.raises(anyio.BrokenResourceError) as caught:
            await connection.receive()
        told.append(str(caught.value))

    async with l5.serve(lie, url, per="connection") as server:
        async with await l5.connect(server.urls[0]) as client:
            with pytest.raises(l5.RemoteProtocolError, match="answered request 99"):
                await client.receive()
        while not told:
            await anyio.sleep(0.001)
    assert "answered request 99, which has no answer open" in told[0]


# ---- TLS and not TLS -----------------------------------------------------------------------------


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def test_one_end_with_tls_and_one_without() -> None:
    theirs, ours = contexts()
    hint = "one end is l5:// and the other l5s://"
    async with l5.serve(echo, "l5s://127.0.0.1:0", ssl_context=theirs) as server:
        with pytest.raises(l5.ConnectError, match=hint):
            await l5.connect(server.urls[0].replace("l5s:", "l5:"))
        async with await l5.connect(server.urls[0], ssl_context=ours) as client:
            assert await client.request(b"x") == b"x"
    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        with pytest.raises(l5.ConnectError, match=hint):
            await l5.connect(server.urls[0].replace("l5:", "l5s:"), ssl_context=ours)
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"x") == b"x"


# ---- what was sent before a close --------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
async def test_nothing_is_lost_when_credit_meets_a_close(tls: bool) -> None:
    """The receiver grants credit after the close, while much is still in the sender's system."""
    theirs, ours = contexts() if tls else (None, None)
    counts: list[int] = []
    closing = anyio.Event()

    async def count(connection: l5.Connection) -> None:
        channel: Any = connection._session.channel
        channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        await closing.wait()
        received = 0
        with suppress(anyio.BrokenResourceError):
            async for message in connection:
                received += len(message)
        counts.append(received)

    scheme = "l5s" if tls else "l5+tcp"
    url = f"{scheme}://127.0.0.1:0?transports=tcp&data_window=2MiB"
    async with l5.serve(count, url, per="connection", ssl_context=theirs) as server:
        place = f"{server.urls[0]}?transports=tcp"
        async with await l5.connect(place, ssl_context=ours, close_timeout=60.0) as client:
            for _ in range(15):
                await client.send(bytes(100_000))
            closing.set()
        while not counts:
            await anyio.sleep(0.001)
    assert counts == [1_500_000]


async def test_a_peer_that_never_reads_is_left_after_close_timeout(
    url: str, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.actor("_hostile:listen_silently", url) as peer:
        at = await peer.says("at")
        client = await l5.connect(at, close_timeout=0.05)
        while True:  # on a busy machine the time may be over before anything is in the way
            with anyio.move_on_after(0.05) as waited:
                await client.send(bytes(100_000))
            stuck = "shm" in url or client._session.channel.wants_write
            if waited.cancelled_caught and stuck:
                break
        with caplog.at_level(logging.WARNING, "l5.session"):
            await client.aclose()
        # What is in the ring is the peer's already.
        lost = any("close_timeout" in record.message for record in caplog.records)
        assert lost is ("shm" not in url)
        with pytest.raises(anyio.ClosedResourceError):
            await client.send(b"x")


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "async"])
async def test_an_answer_over_the_limit_is_not_sent(url: str, how: str) -> None:
    """It is short enough for one segment, which used to be all that was looked at."""

    def double(request: bytes) -> bytes:
        return 2 * request

    async def double_later(request: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        return 2 * request

    handler = double if how == "plain" else double_later
    async with l5.serve(handler, url) as server:
        async with await l5.connect(server.urls[0], max_message="1KiB") as client:
            with pytest.raises(l5.RequestFailed, match="1400 bytes is over the agreed limit"):
                await client.request(bytes(700))
            with pytest.raises(l5.MessageTooLarge, match="1025 bytes is over the agreed limit"):
                await client.request(bytes(1025))
            with pytest.raises(l5.MessageTooLarge):
                await client.send(bytes(1025))
            assert await client.request(bytes(512), deadline=60.0) == bytes(1024)


async def test_a_long_error_fits_a_short_segment(url: str) -> None:
    def fail(request: bytes) -> bytes:
        raise l5.HandlerError("E" * 5000, request.decode() * 5000)

    async with l5.serve(fail, url) as server:
        async with await l5.connect(server.urls[0], max_message="1KiB") as client:
            for _ in range(2):
                with pytest.raises(l5.RequestFailed, match="EEE") as caught:
                    await client.request(b"x")
                assert len(caught.value.remote_type) == 512
                assert caught.value.remote_message == "x" * 510


# ---- the ends of a server ----------------------------------------------------------------------


async def test_a_server_that_was_not_entered() -> None:
    server = l5.serve(echo, "l5://127.0.0.1:0")
    for call in (server.wait_closed, server.stop, server.serve_forever):
        with pytest.raises(RuntimeError, match=r"async with l5\.serve"):
            await call()
    async with server:
        pass
    with pytest.raises(RuntimeError, match="make another one"):
        await server.__aenter__()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_ends_a_server_without_a_traceback(number: int, backend: str) -> None:
    program = f"""
import anyio, l5
async def main():
    async def say():
        await anyio.wait_all_tasks_blocked()
        print("serving", flush=True)
    async with l5.serve(bytes.upper, "l5://127.0.0.1:0") as server, anyio.create_task_group() as g:
        g.start_soon(say)
        await server.serve_forever()
    print("ended", flush=True)
anyio.run(main, backend="{backend}")
"""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert (out, err, process.returncode) == ("ended\n", "", 0)
