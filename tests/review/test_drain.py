"""A peer that goes away but does not stop writing cannot hold the event loop."""

import tempfile
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
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


async def test_frames_that_are_no_requests_do_not_keep_the_loop(tmp_path: Path) -> None:
    """As if a client filled its ring with control frames as fast as they are taken."""
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(bytes, url) as server, await l5.connect(url) as connection:
        assert await connection.request(b"x") == b"x"
        victim: Any = next(iter(server._sessions))
        left = 50_000
        turns: list[int] = []

        class Endless:
            """The hub's poller, while the ring has something."""

            def __getattr__(self, name: str) -> Any:
                return getattr(poller, name)

            def serve(self, *arguments: Any) -> Any:
                return victim.ring if left > 0 else poller.serve(*arguments)

        def endless() -> Any:
            nonlocal left
            left -= 1
            return (Kind.CANCEL, 0, 7, b"") if left > 0 else None

        poller, victim.hub.poller = victim.hub.poller, Endless()
        receive, victim.channel.try_receive = victim.channel.try_receive, endless
        async with anyio.create_task_group() as group:
            group.start_soon(connection.request, b"a request, so that the server wakes")
            while left > 0:
                turns.append(left)
                await anyio.lowlevel.checkpoint()
            victim.channel.try_receive, victim.hub.poller = receive, poller
        assert len(turns) > 50
        assert await connection.request(b"x") == b"x"
