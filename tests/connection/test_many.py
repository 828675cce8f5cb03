"""Pipelined requests and batches of messages: the right answers, in their order."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import l5
from l5 import native

pytestmark = pytest.mark.anyio
BINDS = [pytest.param("shm", marks=pytest.mark.shm), "unix"]
if not native.available:
    BINDS = ["unix"]


async def handle(request: bytes) -> bytes:
    if request == b"fail":
        raise ValueError("asked to")
    if request.startswith(b"slow"):
        await anyio.sleep(0.001)
    return b"=" + request


@pytest.mark.parametrize("bind", BINDS)
@pytest.mark.parametrize("window", [1, 3, 64])
async def test_answers_come_in_the_order_of_the_requests(
    tmp_path: Path, bind: str, window: int
) -> None:
    payloads: list[Any] = [b"%d" % number for number in range(700)]
    payloads[5] = b"slow"  # answered after later ones
    payloads[6] = bytes(300_000)  # longer than a segment
    payloads[7] = bytearray(b"buffer")
    payloads[699] = b""
    url = f"l5+unix://{tmp_path}/s"
    async with l5.serve(handle, url), await l5.connect(url, transports=bind) as connection:
        answers = await connection.request_many(payloads, window=window)
        assert answers == [b"=" + payload for payload in payloads]
        assert await connection.request_many([]) == []
        assert await connection.request(b"after") == b"=after"
        assert connection.statistics().in_flight == 0


@pytest.mark.parametrize("bind", BINDS)
async def test_a_failure_names_its_place_and_abandons_the_others(tmp_path: Path, bind: str) -> None:
    url = f"l5+unix://{tmp_path}/s"
    async with l5.serve(handle, url), await l5.connect(url, transports=bind) as connection:
        with pytest.raises(l5.RequestFailed, match="asked to") as caught:
            await connection.request_many([b"a", b"fail", b"slow", b"b"])
        assert caught.value.__notes__ == ["request 1 of request_many"]
        assert await connection.request(b"sound") == b"=sound"
        with pytest.raises(l5.MessageTooLarge):
            await connection.request_many([b"never sent", bytes(connection.max_message_bytes + 1)])
        with pytest.raises(ValueError, match="window is 0"):
            await connection.request_many([b"x"], window=0)


@pytest.mark.parametrize("bind", BINDS)
async def test_cancelled_it_disturbs_nobody(tmp_path: Path, bind: str) -> None:
    url = f"l5+unix://{tmp_path}/s"
    async with l5.serve(handle, url), await l5.connect(url, transports=bind) as connection:
        for _ in range(20):
            with anyio.move_on_after(0.003):
                await connection.request_many([b"slow"] * 500)
            assert await connection.request(b"between") == b"=between"
        with anyio.fail_after(60):
            while connection.statistics().in_flight:
                await connection.request(b"until the late answers are in")


@pytest.mark.parametrize("bind", BINDS)
async def test_two_batches_and_single_requests_at_once(tmp_path: Path, bind: str) -> None:
    url = f"l5+unix://{tmp_path}/s"
    results: dict[int, list[bytes]] = {}

    async def many(number: int) -> None:
        results[number] = await connection.request_many(
            [b"slow %d" % number if place % 50 == 0 else b"%d" % number for place in range(300)]
        )

    async with l5.serve(handle, url), await l5.connect(url, transports=bind) as connection:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(many, number)
            for _ in range(50):
                assert await connection.request(b"single") == b"=single"
    for number in range(4):
        assert len(results[number]) == 300
        assert {answer[-1:] for answer in results[number]} == {b"%d" % number}


@pytest.mark.parametrize("bind", BINDS)
async def test_messages_that_have_come_are_taken_together(tmp_path: Path, bind: str) -> None:
    url = f"l5+unix://{tmp_path}/s"
    count = 500

    async def send_all(connection: l5.Connection) -> None:
        for number in range(count):
            await connection.send(b"%d" % number if number != 77 else b"77" * 200_000)
        with pytest.raises(anyio.EndOfStream):
            await connection.receive()

    messages: list[bytes] = []
    serving = l5.serve(send_all, url, per="connection")
    async with serving, await l5.connect(url, transports=bind) as connection:
        calls = 0
        while len(messages) < count:
            batch = await connection.receive_many(10)
            assert 1 <= len(batch) <= 10
            messages += batch
            calls += 1
        assert calls < count
        with pytest.raises(ValueError, match="limit is 0"):
            await connection.receive_many(0)
    expected = [b"%d" % number for number in range(count)]
    expected[77] = b"77" * 200_000
    assert messages == expected


@pytest.mark.parametrize("bind", BINDS)
async def test_a_payload_that_is_taken_away_in_the_middle(tmp_path: Path, bind: str) -> None:
    """What was sent together with it is waited for, or nobody would know those answers."""
    view, seen = memoryview(bytearray(b"view")), 0

    async def take_away(request: bytes) -> bytes:
        nonlocal seen
        seen += 1
        if seen == 100:
            view.release()
        return request

    url = f"l5+unix://{tmp_path}/s"
    payloads: list[Any] = [b"a"] * 300 + [view] + [b"b"] * 10
    async with l5.serve(take_away, url), await l5.connect(url, transports=bind) as connection:
        with pytest.raises(ValueError, match="released"):
            await connection.request_many(payloads, window=1000 if bind == "shm" else 64)
        for _ in range(3):
            assert await connection.request(b"again") == b"again"


@pytest.mark.shm
@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_sizes_of_bytes_are_looked_at_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look from Python delays the first request, and the peer has nothing to do meanwhile."""
    from l5 import _transmit

    check, looked_at = _transmit.check_size, list[int]()

    def count(session: Any, size_bytes: int) -> None:
        if session is connection._session:  # pyright: ignore[reportPrivateUsage]
            looked_at.append(size_bytes)  # not the server's, of its answers
        check(session, size_bytes)

    monkeypatch.setattr(_transmit, "check_size", count)
    url = f"l5+unix://{tmp_path}/s"
    async with l5.serve(handle, url), await l5.connect(url, transports="shm") as connection:
        assert await connection.request_many([b"a", b"bc"]) == [b"=a", b"=bc"]
        assert not looked_at
        mixed = [b"a", bytearray(b"bc"), memoryview(b"d")]
        assert await connection.request_many(mixed) == [b"=a", b"=bc", b"=d"]
        assert looked_at == [1, 2, 1]
        too_long = bytes(connection.max_message_bytes + 1)
        sent = connection.statistics().requests_sent
        with pytest.raises(l5.MessageTooLarge):
            await connection.request_many([b"never sent", too_long])
        assert connection.statistics().requests_sent == sent
