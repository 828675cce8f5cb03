"""A frame that the socket took in part is pushed out, even if nothing else ever happens."""

import os
import socket

import anyio
import pytest

import l5

pytestmark = pytest.mark.anyio


UNIX = f"l5+unix://@l5-test-rest-{os.getpid()}?transports=unix"


@pytest.mark.parametrize(
    "url", [pytest.param("l5+tcp://127.0.0.1:0", id="tcp"), pytest.param(UNIX, id="unix")]
)
async def test_a_partial_request_behind_a_sleeping_one(url: str) -> None:
    answered = anyio.Event()

    async def handle(request: bytes) -> bytes:
        if len(request) == 1:
            await answered.wait()
        return b"%d" % len(request)

    async with l5.serve(handle, url) as server:
        target = server.urls[0].partition("?")[0] + "?transports=tcp,unix"
        async with await l5.connect(target) as conn:
            sock = conn._session.channel._socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    # Its task sleeps for all of the connection and was armed for reading only.
                    group.start_soon(conn.request, b"x")
                    await anyio.wait_all_tasks_blocked()
                    assert await conn.request(bytes(120_000)) == b"120000"
                    answered.set()
