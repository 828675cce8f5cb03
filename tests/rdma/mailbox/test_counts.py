"""What the protocol costs, in requests and completions."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest

import l5
from l5._frames import Flag, Kind
from l5._unwoken import OWED_TURNS, Unwoken
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


class Hub:
    """Notes what a channel asks of the hub of its session."""

    def __init__(self) -> None:
        self.owing: list[object] = []

    def owe(self, channel: object) -> None:
        self.owing.append(channel)

    def touch(self, session: object) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "flags", "notices"),
    [
        (Kind.REQUEST, 0, 0),
        (Kind.DATA, 0, 0),
        (Kind.REQUEST, Flag.MORE, 1),
        (Kind.DATA, Flag.MORE, 1),
    ],
)
def test_a_row_is_freed_by_the_answer_and_at_once_if_there_can_be_none(
    kind: Kind, flags: int, notices: int
) -> None:
    """A piece of a message has no answer before the next piece, which waits for the row."""
    with rig_on() as rig:
        pair, hub = rig.pair(), Hub()
        pair.server._session = SimpleNamespace(hub=hub)
        assert pair.client.try_send(kind, flags, 1, b"a piece")
        assert pair.server.try_receive() is not None
        assert pair.server.counters.notices == notices
        assert hub.owing == [pair.server] * (not notices)
        assert pair.client.try_receive() is None
        assert pair.client._sender.free == bool(notices)
        pair.server._session = None


def test_an_answer_has_its_turns_whatever_was_owed_before() -> None:
    paid: list[object] = []

    class Channel:
        def settle(self) -> bool:
            paid.append(self)
            return True

    hub, channel = Unwoken(), Channel()
    for _ in range(10):  # each of them is answered before its turns are over
        hub.owe(channel)
        for _ in range(OWED_TURNS):
            hub.settle()
    assert paid == [] and list(hub.owing) == [channel]
    hub.settle()
    assert paid == [channel] and not hub.owing


def test_a_word_that_need_not_go_alone_goes_with_the_answer() -> None:
    with rig_on() as rig:
        pair = rig.pair()
        assert pair.ask(b"hello") and pair.server.try_receive() is not None
        assert pair.server.carry(Kind.HEARTBEAT, 0, 0, b"twelve bytes")
        assert pair.server.carry(Kind.HEARTBEAT, 0, 0, b"later twelve")
        assert not pair.server.carry(Kind.HEARTBEAT, 0, 0, b"more than twelve")
        assert pair.client.try_receive() is None and pair.server.counters.posts == 0
        assert pair.answer(b"answer")
        got = [pair.client.try_receive(), pair.client.try_receive(), pair.client.try_receive()]
        assert got == [
            (Kind.HEARTBEAT, 0, 0, b"later twelve"),
            (Kind.RESPONSE, 0, 1, b"answer"),
            None,
        ]
        assert pair.server.counters.posts == 1


@pytest.mark.anyio
async def test_a_round_trip_is_three_writes_heartbeats_and_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(monkeypatch)
    async with l5.serve(lambda request: request, "l5+rdma://127.0.0.1:0", heartbeat_ms=1) as server:
        async with await l5.connect(server.urls[0], heartbeat_ms=1) as client:
            assert await client.request(b"hello") == b"hello"
            (session,) = server._sessions
            counters = session.channel.counters
            posts, notices, count = counters.posts, counters.notices, 0
            while client.heartbeat.sequence < 5:
                assert await client.request(b"hello") == b"hello"
                count += 1
            assert counters.posts - posts == count
            assert counters.notices == notices


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
