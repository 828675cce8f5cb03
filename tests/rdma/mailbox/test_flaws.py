"""Flaws of a published implementation (pfent/L5RDMA): each has a test here that fails with it.

That it does is part of the test: the flaw is planted, and the same check fails.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import l5
from l5 import native
from l5.rdma import _mailbox, verbs
from l5.rdma._simulated import Fabric, hostile

from ._rig import Pair, Rig, rig_on

SIZES = (300, 900, 40, 2000, 230, 7)


def fails(check: Callable[[], object]) -> None:
    with pytest.raises(
        (AssertionError, l5.RemoteProtocolError, anyio.BrokenResourceError, verbs.VerbsError)
    ):
        check()


class SizeOnly:
    """(Flaw 1) zeroes nothing but the size of a message that has been consumed."""

    def __init__(self, spot: Any, base: int, size: int) -> None:
        self._spot, self._base, self._mask = spot, base, size - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spot, name)

    def take(self, whole: bool) -> bytes | None:
        at = self._base + (self._spot.read & self._mask)
        data = self._spot.take(whole)
        if data is not None:
            ctypes.memmove(at + 4, data + _mailbox.OK, len(data) + 1)
        return data


def laps_of_ok_bytes(flawed: bool) -> None:
    """Several laps of messages of OK bytes, landing in pieces, none accepted before it is whole."""
    fabric = Fabric(hostile(3))
    with rig_on(fabric) as rig:
        pair = rig.pair("flags")
        if flawed:
            ring = pair.client.ring_region
            pair.client._spot = SizeOnly(pair.client._spot, ring.address, 64 << 10)  # type: ignore[assignment]
        count = 0
        while count < 150:
            size = SIZES[count % len(SIZES)] * 3
            if not pair.answer(b"O" * (size - 1) + bytes([count % 256]), count):
                pair.server.on_event()
            while (frame := pair.client.try_receive()) is None:
                pair.server_end.poll()
            assert frame.payload == b"O" * (size - 1) + bytes([count % 256])
            count += 1
            if count % 8 == 0:
                assert pair.ask(b"")
                while pair.server.try_receive() is None:
                    pair.client_end.poll()


def test_1_a_consumed_message_leaves_nothing_behind() -> None:
    laps_of_ok_bytes(flawed=False)
    fails(lambda: laps_of_ok_bytes(flawed=True))


def long_answers() -> None:
    """Answers that are not inline leave when the device takes them, not when they are posted."""
    from l5.rdma._simulated import Plan

    plan = Plan()
    plan.immediate, plan.manual = False, True
    fabric = Fabric(plan)
    with rig_on(fabric) as rig:
        pair = rig.pair("flags")
        sent = [bytes([65 + i]) * size for i, size in enumerate(SIZES)]
        for id, payload in enumerate(sent):
            assert pair.answer(payload, id)
        fabric.settle()
        got = [frame.payload for _ in sent if (frame := pair.client.try_receive())]
        assert got == sent


def test_2_a_message_is_not_overwritten_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    long_answers()
    monkeypatch.setattr(_mailbox.Arena, "place", lambda self, length: 0)
    fails(long_answers)


def around_the_inline_limit(flawed: bool) -> None:
    with rig_on() as rig:
        pair = rig.pair()
        limit = pair.client_end.inline_max
        if flawed:
            pair.client_end.inline_max = 3000
        for size in (limit - 60, limit - 20, limit, limit + 1, 2500):
            answer = pair.round_trip(bytes(size))
            assert answer is not None and answer.payload == bytes(size)


def test_3_only_what_fits_is_inline_and_few_are_signalled() -> None:
    around_the_inline_limit(flawed=False)
    fails(lambda: around_the_inline_limit(flawed=True))


def served_in_turns(scan: Callable[[Any], list[int]]) -> None:
    memory = ctypes.create_string_buffer(256)
    base = (ctypes.addressof(memory) + 63) & ~63
    spot = native.Spot(0, base, 128)
    served = []
    for _ in range(6):
        for place in (3, 5, 100):  # they never stop asking
            ctypes.c_uint8.from_address(base + place).value = 1
        served += scan(spot)
    assert sorted(served) == [3, 3, 5, 5, 100, 100]


def test_4_flags_are_taken_in_turns() -> None:
    served_in_turns(lambda spot: spot.scan(1))

    def first_one(spot: Any) -> list[int]:
        return [next(place for place in range(128) if spot.take_flag(place))]

    fails(lambda: served_in_turns(first_one))


def neighbours(rig: Rig) -> tuple[Pair, Pair]:
    return rig.pair(), rig.pair()


def write_to(attacker: Pair, address: int, rkey: int, length: int = 1) -> int:
    """Write as the attacker's device lets it; return the completion's status."""
    end = attacker.client_end
    request = end.pair.prepare(
        verbs.OP_WRITE, end.scratch, address=end.flag_source, remote_address=address, rkey=rkey
    )
    request.post(length, end.slots.take(1, verbs.SIGNALED))
    return end.queue.poll()[0].status  # behind a failure come receives that are flushed


def test_5_no_key_opens_what_is_anothers() -> None:
    def reach(target: Callable[[Pair, Pair], tuple[int, int, int]]) -> int:
        with rig_on() as rig:
            one, other = neighbours(rig)
            status = write_to(one, *target(one, other))
            answer = other.round_trip(b"untouched")
            assert answer is not None and answer.payload == b"untouched"
            return status

    denied = verbs.REMOTE_ACCESS_ERROR
    flag = lambda pair: pair.server.flag_region  # noqa: E731
    row = lambda pair: pair.server.row_region  # noqa: E731
    assert reach(lambda a, b: (flag(a).address, flag(a).rkey, 1)) == verbs.SUCCESS
    assert reach(lambda a, b: (flag(a).address + 1, flag(a).rkey, 1)) == denied
    assert reach(lambda a, b: (flag(b).address, flag(b).rkey, 1)) == denied
    assert reach(lambda a, b: (row(b).address, row(b).rkey, 1)) == denied
    assert reach(lambda a, b: (row(a).address, row(a).rkey, 4096)) == verbs.SUCCESS
    assert reach(lambda a, b: (row(a).address + 1, row(a).rkey, 4096)) == denied


def test_6_a_dead_peer_is_noticed() -> None:
    fabric = Fabric(hostile(5))
    with rig_on(fabric) as rig:
        pair = rig.pair()
        fabric.kill(pair.server_end.pair.number)
        assert pair.ask(b"anybody there?")
        fabric.expire()  # the retries, which are finite: with 7 of them nothing expires
        while not pair.client.poll() and not pair.client.trouble:
            pair.client_end.poll()
        assert "gone" in pair.client.trouble
        with pytest.raises(anyio.BrokenResourceError, match="gone"):
            pair.ask(b"again")
        with pytest.raises(anyio.EndOfStream):
            pair.client.try_receive()


def test_7_sizes_have_four_bytes() -> None:
    sender = _mailbox.RowSender(4096)
    sender.add(2, 0, 7, b"abc")
    frame = b"\3\0\0\0\2\0\0\0\7\0\0\0\0\0\0\0abc"
    row = sender.pack(read=64, receives=128)
    assert row == b"\x23\0\0\0" + b"\x40" + bytes(7) + b"\x80\0\0\0" + bytes(4) + frame
    writer = _mailbox.RingWriter(4096, False)
    at, message = writer.pack((3, 0, 7, b"abc"))
    answer = b"\3\0\0\0\3\0\0\0\7\0\0\0\0\0\0\0abc"
    assert (at, message) == (0, b"\x1b\0\0\0" + bytes(8) + answer + b"\x4f")
