"""A client that writes what it should not harms itself alone."""

from __future__ import annotations

import ctypes

import pytest

from l5._errors import RemoteProtocolError
from l5._frames import Kind

from ._lies import ATTACKS, FRAME, SERVER_ATTACKS, row
from ._rig import Pair, rig_on


def put(pair: Pair, row: bytes) -> None:
    """Do what the client's device could: write its row, set its flag."""
    pair.server._row.view[: len(row)] = row
    pair.server._room.set_again(pair.server._place)
    pair.server_end.arrived += pair.server.mode == "imm"


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.parametrize("mode", ["flags+imm", "imm"])
def test_it_is_told_apart_and_the_neighbour_goes_on(attack: str, mode: str) -> None:
    with rig_on() as rig:
        bad, good = rig.pair(mode), rig.pair(mode)
        put(bad, ATTACKS[attack])
        with pytest.raises(RemoteProtocolError, match="the peer"):
            bad.server.try_receive()
        answer = good.round_trip(b"still here")
        assert answer is not None and answer.payload == b"still here"


def test_a_row_that_changes_while_it_is_read_is_read_once() -> None:
    with rig_on() as rig:
        pair = rig.pair()
        put(pair, row(FRAME))
        frame = pair.server.try_receive()
        pair.server._row.view[:64] = b"\xff" * 64
        assert frame == (Kind.REQUEST, 0, 1, b"abc")


def test_a_flood_of_flags_ends_its_sender() -> None:
    with rig_on() as rig:
        bad, good = rig.pair(), rig.pair()
        put(bad, row(FRAME))
        assert bad.server.try_receive() is not None
        put(bad, b"")
        with pytest.raises(RemoteProtocolError, match="flag"):
            bad.server.try_receive()
        assert good.round_trip(b"x") is not None


@pytest.mark.parametrize("attack", list(SERVER_ATTACKS))
def test_a_hostile_server_is_found_out(attack: str) -> None:
    with rig_on() as rig:
        pair = rig.pair()
        data = SERVER_ATTACKS[attack]
        ctypes.memmove(pair.client.ring_region.address, data, len(data))
        with pytest.raises(RemoteProtocolError):
            pair.client.try_receive()


@pytest.mark.parametrize("mode", ["flags", "flags+imm"])
def test_a_message_that_is_never_whole_keeps_nobody_from_sleeping(mode: str) -> None:
    with rig_on() as rig:
        pair = rig.pair(mode)
        assert pair.ask(b"anything") and pair.server.try_receive() is not None
        ctypes.memmove(pair.client.ring_region.address, b"\x64", 1)  # its size, and not the rest
        assert not pair.client.poll()
        assert pair.client.try_receive() is None
        assert pair.client.arm()
        assert pair.answer(b"late")  # into the same place: now it is all there
        assert pair.client.poll() and not pair.client.arm()
        frame = pair.client.try_receive()
        assert frame is not None and frame.payload == b"late"
