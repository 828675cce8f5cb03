"""The pure part of the protocol: what is written is read again, and nonsense is refused."""

import struct

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catfish_app import RTree, ServiceStats, _wire
from catfish_app._wire import Op, ReplyError

U64 = st.integers(0, 2**64 - 1)


def test_the_head_as_a_number_and_as_fields() -> None:
    for op in Op:
        number = _wire.head(op, 0x01020304)
        assert struct.pack("<Q", number) == _wire.HEAD.pack(op, _wire.VERSION, 0, 0x01020304)


@given(
    counts=st.dictionaries(st.sampled_from(_wire.COUNTED), st.integers(1, 2**63)),
    connections=st.integers(0, 2**32 - 1),
    busy=st.integers(0, 10**6),
    uptime_ns=st.integers(0, 10**15),
)
def test_statistics(counts: dict[str, int], connections: int, busy: int, uptime_ns: int) -> None:
    stats = ServiceStats(
        tree=RTree.bulk(np.zeros((100, 4))).stats(),
        kernel="portable",
        workers=3,
        connections=connections,
        busy_share=busy / 1e6,
        uptime_s=uptime_ns / 1e9,
        requests=counts,
    )
    read = _wire.unpack_stats(_wire.pack_stats(stats))
    assert attrs.evolve(read, uptime_s=0.0) == attrs.evolve(stats, uptime_s=0.0)
    assert read.uptime_s == pytest.approx(stats.uptime_s)


@given(st.lists(st.lists(U64, max_size=20), max_size=20))
def test_the_answers_to_many_searches(answers: list[list[int]]) -> None:
    offsets = np.cumsum([0, *map(len, answers)])
    ids = np.array([id for answer in answers for id in answer], _wire.U64)
    reply = offsets.astype(_wire.U64).tobytes() + ids.tobytes()
    read_offsets, read_ids = _wire.unpack_many(reply, len(answers))
    assert read_offsets.tolist() == offsets.tolist()
    assert read_ids.tolist() == ids.tolist()


@given(st.binary(max_size=200), st.integers(0, 10))
def test_any_answer_is_read_or_refused(reply: bytes, count: int) -> None:
    readers = (
        _wire.unpack_ids,
        _wire.unpack_number,
        _wire.unpack_stats,
        _wire.unpack_bounds,
        _wire.unpack_rects,
        lambda data: _wire.unpack_nearest(data, count),
        lambda data: _wire.unpack_many(data, count),
    )
    for read in readers:
        try:
            read(reply)
        except ReplyError as error:
            assert str(len(reply)) in str(error) or "offsets" in str(error)


@given(st.lists(U64, max_size=5), st.integers(0, 30))
def test_offsets_that_a_server_made_up(offsets: list[int], ids: int) -> None:
    reply = np.array(offsets, _wire.U64).tobytes() + bytes(8 * ids)
    good = offsets[:1] == [0] and offsets == sorted(offsets) and offsets[-1] == ids
    if good:
        assert len(_wire.unpack_many(reply, len(offsets) - 1)[1]) == ids
    elif offsets:
        with pytest.raises(ReplyError):
            _wire.unpack_many(reply, len(offsets) - 1)


def test_pieces_are_joined() -> None:
    assert _wire.join_ids([]).tolist() == []
    one = np.arange(3, dtype=_wire.U64)
    assert _wire.join_ids([np.empty(0, _wire.U64), one]) is one
    assert _wire.join_ids([one, one]).tolist() == [0, 1, 2, 0, 1, 2]
