"""Every order of delivery of a request and its answer, through the channels themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from l5._errors import RemoteProtocolError
from l5._frames import Kind
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


# How many orders there are; at a finer cut more, and the result is the same.
ORDERED = {
    ("flags", there_and_back): 4,
    ("flags+imm", there_and_back): 6,
    ("imm", there_and_back): 1,
    ("flags", two_answers): 4,
    ("flags+imm", two_answers): 5,
    ("imm", two_answers): 5,
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
