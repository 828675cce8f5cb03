"""Messages much larger than the ring; once, on one loop, for they take memory."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import l5

SIZE = 256 << 20
OPTIONS = {"max_message_bytes": SIZE, "ring_bytes": 1 << 20}

pytestmark = pytest.mark.slow


def marked(size: int) -> bytearray:
    """Mostly zeros; every 64 KiB a number that says where."""
    data = bytearray(size)
    for at in range(0, size - 8, 1 << 16):
        data[at : at + 8] = at.to_bytes(8, "little")
    data[-8:] = b"the end!"
    return data


def check(data: bytes) -> None:
    assert len(data) == SIZE
    for at in range(0, SIZE - 8, 1 << 16):
        assert data[at : at + 8] == at.to_bytes(8, "little")
    assert data[-8:] == b"the end!"


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_a_quarter_of_a_gibibyte(tmp_path: Path, transport: str) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={transport}"

    async def swallow(request: bytes) -> bytes:
        if request == b"small":
            return request
        check(request)
        return b"all of it"

    async def main() -> None:
        async with l5.serve(swallow, url, **OPTIONS) as server:
            async with await l5.connect(server.urls[0], **OPTIONS) as client:
                assert client.transport == transport
                small = 0

                async def ask() -> None:
                    nonlocal small
                    while True:
                        assert await client.request(b"small") == b"small"
                        small += 1

                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    assert await client.request(marked(SIZE)) == b"all of it"
                    group.cancel_scope.cancel()
                assert small > 10, "a long request kept the small ones waiting"

    anyio.run(main)


def test_a_quarter_of_a_gibibyte_back(tmp_path: Path) -> None:
    url = f"l5+shm://{tmp_path}/s"

    async def main() -> None:
        async with l5.serve(lambda request: marked(SIZE), url, **OPTIONS):
            async with await l5.connect(url, **OPTIONS) as client:
                check(await client.request(b"please"))

    anyio.run(main)
