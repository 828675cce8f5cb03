"""Operations on remote memory, as bytes: what a peer sends is refused or understood, no more."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5 import _memory_wire as wire
from l5._errors import RemoteAccessError, RemoteProtocolError
from l5._memory_wire import Grant, Operation
from l5._options import ListenOptions, Options

SIZE = 10_000
handles = st.integers(0, (1 << 32) - 1)
words = st.integers(0, wire.WORD_MAX)


@given(handles, st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 50)), max_size=20))
def test_reads(handle: int, spans: list[tuple[int, int]]) -> None:
    asked = wire.parse(wire.pack_read(handle, spans))
    assert (asked.operation, asked.handle) == (Operation.READ, handle)
    if all(offset + length <= SIZE for offset, length in spans):
        assert asked.spans(SIZE, 10_000) == spans
    else:
        with pytest.raises(RemoteAccessError):
            asked.spans(SIZE, 10_000)


@given(handles, words, words, words, st.binary(max_size=50))
def test_the_others(handle: int, offset: int, first: int, second: int, data: bytes) -> None:
    written = wire.parse(wire.pack_write(handle, offset, data))
    assert (written.operation, written.write()) == (Operation.WRITE, (offset, data))
    swapped = wire.parse(wire.pack_swap(handle, offset, first, second))
    assert (swapped.operation, swapped.words(wire.SWAP)) == (
        Operation.SWAP,
        (offset, first, second),
    )
    added = wire.parse(wire.pack_add(handle, offset, first))
    assert (added.operation, added.words(wire.ADD)) == (Operation.ADD, (offset, first))
    assert wire.parse(wire.pack_close(handle)).handle == handle


@given(st.one_of(st.binary(max_size=100), st.binary(max_size=95).map(lambda b: b"\3\1\0\0\0" + b)))
def test_anything(payload: bytes) -> None:
    """Whatever comes: an operation whose parts can be had, or `RemoteAccessError`."""
    try:
        asked = wire.parse(payload)
        for part in (
            lambda: asked.spans(SIZE, 1000),
            asked.write,
            lambda: asked.words(wire.SWAP),
            lambda: asked.words(wire.ADD),
        ):
            try:
                part()
            except RemoteAccessError:
                pass
    except RemoteAccessError:
        pass


def test_the_owner_bounds_a_read() -> None:
    full = wire.parse(wire.pack_read(1, [(0, 1)] * wire.SPANS_MAX))
    assert len(full.spans(SIZE, wire.SPANS_MAX)) == wire.SPANS_MAX
    with pytest.raises(RemoteAccessError, match="more than"):
        full.spans(SIZE, wire.SPANS_MAX - 1)


@given(st.binary(max_size=200))
def test_any_grant(payload: bytes) -> None:
    try:
        wire.parse_grant(payload)
    except RemoteProtocolError:
        pass


def test_a_grant() -> None:
    grant = Grant(size_bytes=1, writable=True, atomic=False, reply_bytes=64, params={"a": b"b"})
    assert wire.parse_grant(wire.pack_grant(grant)) == grant
    for wrong in ({"size_bytes": 0}, {"size_bytes": 1 << 41}, {"reply_bytes": 1 << 20}):
        with pytest.raises(RemoteProtocolError):
            wire.parse_grant(msgspec.msgpack.encode({**msgspec.structs.asdict(grant), **wrong}))


@given(st.integers(0, 1000), st.integers(1, 100))
def test_cutting(length: int, piece: int) -> None:
    pieces = list(wire.cut((5, length), piece))
    assert sum(size for _, size in pieces) == length
    assert [offset for offset, _ in pieces] == [5 + piece * n for n in range(len(pieces))]
    assert all(0 < size <= piece for _, size in pieces) or pieces == [(5, 0)]


@pytest.mark.parametrize("options", [Options(), ListenOptions(), Options(ring_bytes=1 << 16)])
def test_a_link_has_short_messages(options: Options) -> None:
    short = wire.memory_options(options)
    assert wire.FRAME_BYTES < short.max_message_bytes <= short.segment_bytes
    assert short.spin_us == options.spin_us


@pytest.mark.parametrize("name", ["", "a" * 65, "a\x1b", "a\nb", "\x00"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match="name of a region"):
        wire.check_name(name)
