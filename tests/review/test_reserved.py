"""What waits for a reservation: its own task gets an error, others go on when it ends."""

import gc
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import l5
import l5.blocking
from l5 import native

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)


async def echo(request: bytes) -> bytes:
    return request


async def drop_messages(connection: l5.Connection) -> None:
    async for message in connection:
        await connection.send(message)


@pytest.mark.anyio
@pytest.mark.parametrize("thread", [False, True])
async def test_a_sender_goes_on_when_the_last_view_dies(tmp_path: Path, thread: bool) -> None:
    url = f"l5+shm://{tmp_path}/s"
    views: list[memoryview] = []
    async with l5.serve(drop_messages, url, per="connection"), await l5.connect(url) as connection:
        with pytest.raises(BufferError, match="still exist"):
            async with connection.reserve(100) as slot:
                views.append(slot.view)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(connection.send, b"behind it")
                session: Any = connection._session
                while not session.senders:
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                if thread:
                    await anyio.to_thread.run_sync(views.clear)
                else:
                    views.clear()
            assert await connection.receive() == b"behind it"


@pytest.mark.anyio
async def test_the_task_that_reserved_cannot_wait_for_itself(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(echo, url), await l5.connect(url) as connection:
        with anyio.fail_after(60):
            async with connection.reserve(100) as slot:
                for payload in (b"x", bytes(1 << 20)):
                    with pytest.raises(l5.LocalProtocolError, match="reserved"):
                        await connection.send(payload)
                    with pytest.raises(l5.LocalProtocolError, match="reserved"):
                        await connection.request(payload)
                with pytest.raises(l5.LocalProtocolError, match="reserved"):
                    async with connection.reserve(1):
                        pass
                async with anyio.create_task_group() as group:  # others wait
                    group.start_soon(connection.request, b"another task")
                    await anyio.wait_all_tasks_blocked()
                    assert await slot.request(3) == bytes(3)
            async with connection.reserve(3):
                pass
            assert await connection.request(b"afterwards") == b"afterwards"


def test_the_thread_that_reserved_cannot_wait_for_itself(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"
    answers: list[bytes] = []
    with l5.blocking.serve(bytes, url), l5.blocking.connect(url) as connection:
        with connection.reserve(100) as slot:
            with pytest.raises(l5.LocalProtocolError, match="reserved"):
                connection.send(b"x", timeout=60)
            with pytest.raises(l5.LocalProtocolError, match="reserved"):
                connection.request(b"x", timeout=60)
            other = threading.Thread(
                target=lambda: answers.append(connection.request(b"other", timeout=60))
            )
            other.start()
            assert slot.request(3, timeout=60) == bytes(3)
        other.join()
        assert answers == [b"other"]
        view = None
        with pytest.raises(BufferError), connection.reserve(10) as slot:
            view = slot.view
        other = threading.Thread(
            target=lambda: answers.append(connection.request(b"more", timeout=60))
        )
        other.start()
        session: Any = connection._session
        while not session.senders:
            pass
        del view
        gc.collect()
        other.join()
        assert answers == [b"other", b"more"]
