"""Credit and reassembly: honest senders never deadlock, memory stays bounded, liars are caught."""

from __future__ import annotations

import tracemalloc

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l5._errors import RemoteProtocolError
from l5._flow import FRAME_COST, Budget, Credit, Reassembly, Refused, Window, data_cost

Key = tuple[bool, int]


@attrs.define(eq=False)
class Sending:
    """A message at an honest sender: it sends what it was granted, in segments."""

    key: Key
    data: bytes
    segment: int
    credit: Credit
    sent: int = 0

    def ready(self) -> bool:
        size = min(self.segment, len(self.data) - self.sent)
        return self.sent + size <= self.credit.allowed_bytes

    def step(self, reassembly: Reassembly) -> bytes | None:
        size = min(self.segment, len(self.data) - self.sent)
        part = self.data[self.sent : self.sent + size]
        self.sent += size
        return reassembly.add(self.key, part, self.sent < len(self.data))


class Link:
    """One connection: its receiver's reassembly, and the messages that its peer sends."""

    def __init__(self, limit: int, credit: int, message_limit: int, parent: Budget | None) -> None:
        self.credit = credit
        self.budget = Budget(limit, parent)
        self.sendings: dict[Key, Sending] = {}
        self.reassembly = Reassembly(
            message_limit=message_limit,
            credit_bytes=credit,
            partials_max=64,
            budget=self.budget,
            grant=self.grant,
        )

    def grant(self, key: Key, allowed_bytes: int) -> None:
        if key in self.sendings:  # a grant may cross the message's last segment
            assert allowed_bytes > self.sendings[key].credit.allowed_bytes
            self.sendings[key].credit.allowed_bytes = allowed_bytes

    def begin(self, number: int, size: int, segment: int) -> None:
        key = (bool(number % 3 == 0), number)
        data = bytes([number % 251]) * size
        self.sendings[key] = Sending(key, data, segment, Credit(self.credit))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_honest_senders_always_get_through(data: st.DataObject) -> None:
    credit = data.draw(st.integers(4, 40), label="credit")
    segment = data.draw(st.integers(1, credit), label="segment")
    message_limit = data.draw(st.integers(credit, 400), label="message limit")
    links_count = data.draw(st.integers(1, 3), label="connections")
    limit = data.draw(st.integers(message_limit, 600), label="budget")
    total = None
    if data.draw(st.booleans(), label="a server's budget"):
        total = Budget(data.draw(st.integers(max(limit, 12 * credit), 3000), label="total"))
    links = [Link(limit, credit, message_limit, total) for _ in range(links_count)]
    number = 0
    for link in links:
        for _ in range(data.draw(st.integers(1, 6), label="messages")):
            number += 1
            size = data.draw(st.integers(segment + 1, max(message_limit, segment + 1)))
            link.begin(number, min(size, message_limit), segment)
    while any(link.sendings for link in links):
        ready = [
            (link, sending)
            for link in links
            for sending in link.sendings.values()
            if sending.ready()
        ]
        assert ready, "every sender waits for credit, and nobody will grant any"
        link, sending = data.draw(st.sampled_from(ready))
        if data.draw(st.integers(0, 19)) == 0 and sending.sent:
            assert link.reassembly.drop(sending.key) == (sending.sent > 0)
            del link.sendings[sending.key]  # given up in the middle
            continue
        whole = sending.step(link.reassembly)
        assert (whole is not None) == (sending.sent == len(sending.data))
        if whole is not None:
            assert whole == sending.data
            del link.sendings[sending.key]
        for each in links:
            held = each.reassembly._partials.values()
            assert each.budget.used_bytes == sum(partial.allowed_bytes for partial in held)
            assert each.budget.used_bytes <= limit + message_limit + 6 * credit
        if total is not None:
            assert total.used_bytes == sum(each.budget.used_bytes for each in links)
            assert total.used_bytes <= total.limit_bytes + message_limit + 18 * credit
    assert all(link.budget.used_bytes == 0 for link in links)
    assert total is None or total.used_bytes == 0


@given(
    credit=st.integers(4, 100),
    sizes=st.lists(st.integers(0, 120), max_size=30),
    keys=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=30, max_size=30),
    more=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_any_segments(credit: int, sizes: list[int], keys: list[Key], more: list[bool]) -> None:
    """Nothing but `RemoteProtocolError` comes out, and what is held was granted."""
    budget = Budget(500)
    reassembly = Reassembly(
        message_limit=300, credit_bytes=credit, partials_max=3, budget=budget, grant=lambda *_: None
    )
    for key, size, goes_on in zip(keys, sizes, more, strict=False):
        try:
            reassembly.add(key, bytes(size), goes_on)
        except RemoteProtocolError:
            reassembly.clear()
            break
        held = sum(partial.size_bytes for partial in reassembly._partials.values())
        assert held <= budget.used_bytes
        assert sum(not key[0] for key in reassembly._partials) <= 3  # answers are not counted
    else:
        reassembly.clear()
    assert budget.used_bytes == 0
    assert len(reassembly) == 0


def test_more_than_was_granted() -> None:
    reassembly = Reassembly(
        message_limit=1000, credit_bytes=10, partials_max=3, budget=Budget(0), grant=lambda *_: None
    )
    reassembly.add((False, 1), bytes(4), True)
    reassembly.add((False, 2), bytes(4), True)  # not the oldest, and there is no budget
    reassembly.add((False, 2), bytes(6), True)
    with pytest.raises(RemoteProtocolError, match="granted"):
        reassembly.add((False, 2), bytes(1), True)


def test_too_long_and_too_many() -> None:
    reassembly = Reassembly(
        message_limit=15, credit_bytes=10, partials_max=2, budget=Budget(99), grant=lambda *_: None
    )
    reassembly.add((False, 1), bytes(10), True)
    with pytest.raises(RemoteProtocolError, match="more than the agreed 15"):
        reassembly.add((False, 1), bytes(6), False)
    reassembly.add((False, 2), bytes(1), True)
    for id in range(1, 5):  # answers: as many as there are requests of ours
        reassembly.add((True, id), bytes(1), True)
    with pytest.raises(RemoteProtocolError, match="more than 2"):
        reassembly.add((False, 3), bytes(1), True)
    assert reassembly.drop((False, 2))
    reassembly.add((False, 3), bytes(1), True)


def test_short_segments_cost_little_more_than_their_bytes() -> None:
    """Whoever cuts a message into bytes must not have us keep an object for each."""
    reassembly = Reassembly(
        message_limit=1 << 20,
        credit_bytes=1 << 20,
        partials_max=1,
        budget=Budget(1 << 20),
        grant=lambda *_: None,
    )
    tracemalloc.start()
    try:
        for _ in range(50_000):
            reassembly.add((False, 1), b"", True)
            reassembly.add((False, 1), b"ab", True)
        assert tracemalloc.get_traced_memory()[0] < 150_000
    finally:
        tracemalloc.stop()
    whole = bytes(5000)
    reassembly.add((False, 1), whole, True)
    reassembly.add((False, 1), b"c", True)
    assert reassembly.add((False, 1), b"d", False) == b"ab" * 50_000 + whole + b"cd"


def test_a_server_takes_no_more_than_twice_its_budget() -> None:
    total = Budget(100)
    links = [Link(1000, 50, 1000, total) for _ in range(5)]
    for link in links[:4]:
        link.reassembly.add((False, 1), bytes(1), True)
    with pytest.raises(RemoteProtocolError, match="try again later"):
        links[4].reassembly.add((False, 1), bytes(1), True)
    links[0].reassembly.clear()
    links[4].reassembly.add((False, 1), bytes(1), True)


def test_a_request_without_memory_is_thrown_away() -> None:
    total = Budget(100)
    full, late = Link(1000, 200, 1000, total), Link(1000, 50, 1000, total)
    full.reassembly.add((False, 1), bytes(1), True)
    for _ in range(3):  # nothing of it is kept, so it may come whole, and again
        for size in (300, 0, 600):
            assert late.reassembly.add((False, 1), bytes(size), True, refusable=True) is None
        assert late.budget.used_bytes == 0
        with pytest.raises(Refused):
            late.reassembly.add((False, 1), bytes(9), False)
        assert len(late.reassembly) == 0
    late.reassembly.add((False, 2), bytes(300), True, refusable=True)
    with pytest.raises(RemoteProtocolError, match="more than the agreed 1000"):
        late.reassembly.add((False, 2), bytes(701), True)
    late.reassembly.clear()
    full.reassembly.clear()
    late.reassembly.add((False, 1), bytes(9), True, refusable=True)
    assert late.reassembly.add((False, 1), bytes(9), False) == bytes(18)


def test_granting_may_end_the_connection() -> None:
    """A grant that cannot be sent breaks its connection, in the middle of another one's end."""
    budget = Budget(100)
    granted: list[Key] = []

    def grant(key: Key, allowed_bytes: int) -> None:
        granted.append(key)
        reassembly.clear()

    reassembly = Reassembly(
        message_limit=1000, credit_bytes=50, partials_max=9, budget=budget, grant=grant
    )
    for number in (1, 2, 3):
        reassembly.add((False, number), bytes(10), True)
    for number in (2, 3):
        reassembly.add((False, number), bytes(30), True)  # starved: the first is older
    reassembly.drop((False, 1))
    assert granted[0] == (False, 2)
    assert budget.used_bytes == 0
    assert len(reassembly) == 0


# ---- data ----------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=60), window=st.integers(4, 300))
def test_a_sender_of_data_is_never_stuck(sizes: list[int], window: int) -> None:
    """Whatever the sizes, taking what has arrived always lets the next message go."""
    sender = Window(window, window, 1, 1)
    receiver = Window(window, window, 1, 1)
    waiting: list[int] = []
    for size in sizes:
        cost = data_cost(size, sender.peer_window)
        while sender.data_sent + cost > sender.data_allowed:
            assert waiting, "no credit, and nothing that could be taken"
            receiver.data_taken(waiting.pop(0))
            if receiver.credit_owed:
                receiver.credit_owed = 0
                receiver.data_told = receiver.data_taken_total
                sender.data_allowed = receiver.data_taken_total + receiver.data_window
        sender.data_sent += cost
        receiver.data_arrived += cost
        waiting.append(size)
        assert receiver.data_arrived - receiver.data_taken_total <= window
        assert sum(data_cost(each, window) for each in waiting) <= window
    assert data_cost(0, 1 << 20) == FRAME_COST
