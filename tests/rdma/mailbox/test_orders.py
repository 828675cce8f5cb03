"""Every order of delivery of a request and its answer, through the channels themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from l5._errors import RemoteProtocolError
from l5._frames import Flag, Kind
from l5.rdma._simulated import Fabric, explore

from ._rig import Pair, rig_on

# A payload of OK bytes: one that stands where OK is expected would be taken for it.
QUESTION, ANSWER = b"OOOOOOOO", b"OOOOOOOOOOOO"


def on_each_order(
    scenario: Callable[[Fabric, Pair], None], mode: str, *, ordered: bool, cut_bytes: int = 32
) -> int:
    def run(fabric: Fabric) -> None:
        with rig_on(fabric) as rig:
            scenario(fabric, rig.pair(mode))

    return explore(run, ordered=ordered, cut_bytes=cut_bytes)


def there_and_back(fabric: Fabric, pair: Pair) -> None:
    """Look after every step of the fabric; what is received is whole, and comes once."""
    asked, answered = [], []
    assert pair.ask(QUESTION)
    while fabric.step():
        frame = pair.server.try_receive()
        if frame is not None:
            asked.append(frame)
            assert pair.answer(ANSWER)
        answer = pair.client.try_receive()
        if answer is not None:
            answered.append(answer)
    assert asked == [(Kind.REQUEST, 0, 1, QUESTION)]
    assert answered == [(Kind.RESPONSE, 0, 1, ANSWER)]


def two_answers(fabric: Fabric, pair: Pair) -> None:
    """Two messages of the server's are on their way at once."""
    got: list[bytes] = []
    assert pair.answer(b"first", 1) and pair.answer(b"second", 2)
    while fabric.step():
        frame = pair.client.try_receive()
        if frame is not None:
            got.append(frame.payload)
    assert got == [b"first", b"second"]


def both_at_once(fabric: Fabric, pair: Pair) -> None:
    """A request and a message of the server's pass each other."""
    asked: list[bytes] = []
    told: list[bytes] = []
    assert pair.ask(QUESTION) and pair.answer(ANSWER)
    while fabric.step():
        frame = pair.server.try_receive()
        if frame is not None:
            asked.append(frame.payload)
        frame = pair.client.try_receive()
        if frame is not None:
            told.append(frame.payload)
    assert (asked, told) == ([QUESTION], [ANSWER])


def two_pieces(fabric: Fabric, pair: Pair) -> None:
    """A message in two pieces: the second waits for the row, and nothing else can free it."""
    hub = SimpleNamespace(owe=lambda channel: None, touch=lambda session: None)
    pair.server._session = SimpleNamespace(hub=hub)
    got: list[bytes] = []
    try:
        assert pair.client.try_send(Kind.REQUEST, Flag.MORE, 1, b"first")
        assert pair.client.try_send(Kind.REQUEST, 0, 1, b"second")
        assert pair.client.counters.posts <= 2  # the second one waits
        while fabric.step():
            while (frame := pair.server.try_receive()) is not None:
                got.append(frame.payload)
            assert pair.client.try_receive() is None
    finally:
        pair.server._session = None
    assert got == [b"first", b"second"], "the two ends wait for each other"


def a_word_and_an_answer(fabric: Fabric, pair: Pair) -> None:
    """What was carried comes before the answer, and with it."""
    told: list[bytes] = []
    assert pair.ask(QUESTION)
    while fabric.step():
        if pair.server.try_receive() is not None:
            assert pair.server.carry(Kind.HEARTBEAT, 0, 0, b"twelve bytes")
            assert pair.answer(ANSWER)
        while (frame := pair.client.try_receive()) is not None:
            told.append(frame.payload)
        assert len(told) in (0, 2)
    assert told == [b"twelve bytes", ANSWER]


# How many orders there are; at a finer cut more, and the result is the same.
ORDERED = {
    ("flags", there_and_back): 4,
    ("flags+imm", there_and_back): 6,
    ("imm", there_and_back): 1,
    ("flags", two_answers): 4,
    ("flags+imm", two_answers): 5,
    ("imm", two_answers): 5,
    ("flags", two_pieces): 8,
    ("flags+imm", two_pieces): 8,
    ("imm", two_pieces): 1,
    ("flags", a_word_and_an_answer): 4,
    ("flags+imm", a_word_and_an_answer): 6,
    ("imm", a_word_and_an_answer): 1,
}


@pytest.mark.parametrize(("mode", "scenario"), list(ORDERED))
def test_one_and_two_messages_in_every_order_that_connections_keep(
    mode: str, scenario: Callable[[Fabric, Pair], None]
) -> None:
    assert on_each_order(scenario, mode, ordered=True) >= ORDERED[mode, scenario]


@pytest.mark.parametrize("mode", ["flags", "flags+imm", "imm"])
def test_two_messages_that_pass_each_other(mode: str) -> None:
    assert on_each_order(both_at_once, mode, ordered=True, cut_bytes=256) > 10


def test_immediates_need_no_order_at_all() -> None:
    assert on_each_order(there_and_back, "imm", ordered=False) > 5
    assert on_each_order(two_answers, "imm", ordered=False, cut_bytes=64) > 5


def test_flags_need_the_order_of_two_writes() -> None:
    """No standard promises it: without it the server finds a flag over a row that is not there."""
    with pytest.raises((RemoteProtocolError, AssertionError)):
        on_each_order(there_and_back, "flags", ordered=False)
