"""What the protocol costs, in requests and completions."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

import l5
from tests.rdma._simulated import simulate

from ._rig import rig_on

REQUESTS = 160


@pytest.mark.parametrize(("mode", "posts"), [("flags", 2), ("flags+imm", 2), ("imm", 1)])
def test_requests_and_completions(mode: str, posts: int) -> None:
    with rig_on() as rig:
        pair = rig.pair(mode)
        for id in range(REQUESTS):
            answer = pair.round_trip(b"sixty bytes" * 5, id)
            assert answer is not None and answer.id == id
        pair.client_end.poll()
        pair.server_end.poll()
        client, server = pair.client.counters, pair.server.counters
        assert client.posts == posts * REQUESTS
        assert server.posts == REQUESTS
        assert client.inline == server.inline == REQUESTS
        assert client.completions == client.signalled == posts * REQUESTS // 32
        assert server.completions == server.signalled == REQUESTS // 32
        assert (server.notices, server.reads, client.resizes) == (0, 0, 0)
        assert client.immediates == (0 if mode == "flags" else REQUESTS)


@pytest.mark.anyio
async def test_statistics_tell_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    async with l5.serve(lambda request: request, "l5+rdma://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as client:
            for _ in range(REQUESTS):
                assert await client.request(b"hello") == b"hello"
            told = client.statistics().mailbox
            assert told is not None
            assert told.mode == "flags+imm"
            assert told.posts == 2 * (REQUESTS + 1)  # and the round trip of connecting
            assert told.signalled == told.posts // 32
            await anyio.lowlevel.checkpoint()


def test_many_frames_share_a_row() -> None:
    with rig_on() as rig:
        pair = rig.pair()
        for id in range(20):
            assert pair.ask(b"one of many", id)
        assert pair.client.counters.posts == 2  # the others wait for the row
        got = [frame.id for _ in range(1) if (frame := pair.server.try_receive())]
        assert got == [0]
        assert pair.answer(b"first", 0)
        assert pair.client.try_receive() is not None
        assert pair.client.counters.posts == 4
        while (frame := pair.server.try_receive()) is not None:
            got.append(frame.id)
        assert got == list(range(20))


def test_a_long_message_gets_a_larger_row() -> None:
    with rig_on() as rig:
        pair = rig.pair(row_bytes=1024, segment_bytes=8192)
        assert not pair.ask(b"x" * 5000)
        assert pair.server.try_receive() is None and pair.server.settle()
        assert pair.client.try_receive() is None
        assert pair.ask(b"x" * 5000)
        frame = pair.server.try_receive()
        assert frame is not None and frame.payload == b"x" * 5000
        assert len(pair.server._row.view) >= 5000 and pair.server._old is None
