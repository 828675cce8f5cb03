"""A peer that goes away but does not stop writing cannot hold the event loop."""

import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from l5 import native
from l5._frames import Kind

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]


async def test_drain_takes_what_a_ring_holds_and_no_more() -> None:
    async def echo(payload: bytes) -> bytes:
        return payload

    with tempfile.TemporaryDirectory() as path:
        url = f"l5+shm://{Path(path) / 's'}"
        async with l5.serve(echo, url), await l5.connect(url, ring=65536) as connection:
            session: Any = connection._session
            # As if another thread of the peer's filled the ring as fast as it is emptied.
            left = 20_000

            def endless() -> Any:
                nonlocal left
                left -= 1
                return (Kind.HEARTBEAT, 0, 0, bytes(12)) if left else None

            receive, session.channel.try_receive = session.channel.try_receive, endless
            session.on_event(session.fds()[0] + 1000, True, False)  # its process has ended
            assert session.state == "OPEN"  # a few turns' worth, and then the loop has its turn
            assert 20_000 - left <= 4 * 64
            with pytest.raises(anyio.BrokenResourceError, match="process has ended"):
                await connection.send(b"x")
            with pytest.raises(anyio.BrokenResourceError, match="process has ended"):
                await connection.receive()
            session.channel.try_receive = receive
            assert session.state == "BROKEN"
            assert 20_000 - left <= 2 * 65536 // 64
            with pytest.raises(anyio.BrokenResourceError):
                await connection.request(b"x")
