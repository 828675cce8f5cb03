"""The handler in C and the one in Python: the same bytes in, the same bytes out."""

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l5
from catfish_app import NativeTree, RTree, TreeHandler, _wire
from catfish_app._wire import Op

pytestmark = pytest.mark.anyio
CAPACITY = 400
Answer = tuple[str, Any]


class Pair:
    """Both handlers, each with a tree of its own."""

    def __init__(self) -> None:
        self.trees = RTree(capacity=CAPACITY), RTree(capacity=CAPACITY)
        self.native = NativeTree(self.trees[0])
        self.python = TreeHandler(self.trees[1])
        self.tokens: list[bytes] = [bytes(8)]

    def ask(self, request: bytes) -> tuple[Answer, Answer]:
        """Ask both; an error is its type and message."""
        answers = []
        for call in (self.native.service.call, self.python):
            try:
                answers.append(("ok", call(request)))
            except l5.HandlerError as error:
                answers.append((error.type, error.message))
        return answers[0], answers[1]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # nothing here waits


@pytest.fixture
async def pair() -> Any:
    made = Pair()
    made.native.service.start()
    yield made
    await made.native.service.stop()


def request(
    op: int, body: bytes = b"", argument: int = 0, version: int = 1, zero: int = 0
) -> bytes:
    return struct.pack("<BBHI", op, version, zero, argument) + body


def rects(*rows: tuple[float, ...]) -> bytes:
    return np.array(rows, "<f8").tobytes()


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


UNIT = (0.0, 0.0, 1.0, 1.0)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\1\1\0\0\0\0\0",
        request(0),
        request(16),
        request(255),
        request(Op.SEARCH, rects(UNIT), version=2),
        bytes([Op.SEARCH, 1, 1, 0]) + request(Op.SEARCH, rects(UNIT))[4:],
        *(request(op, body) for op in Op for body in (b"", b"x", bytes(8), bytes(40), bytes(73))),
        request(Op.SEARCH, rects((0, 0, NAN, 1))),
        request(Op.COUNT, rects((3, 0, 1, 1))),
        request(Op.NEAREST, rects((0, 0, INF, 1)), 3),
        request(Op.NEAREST, rects(UNIT), 2**32 - 1),
        request(Op.SEARCH_MANY, rects(UNIT, (0, 4, 1, 1))),
        request(Op.INSERT, rects((0, NAN, 1, 1)) + number(1)),
        request(Op.INSERT_MANY, rects(UNIT, (5, 0, 1, 1)) + number(1) + number(2)),
        request(Op.UPDATE, rects(UNIT, (0, 0, 1, -INF)) + number(1)),
        request(Op.LEVEL_RECTS, argument=2**32 - 1),
        request(Op.LOAD_BEGIN, number(2**64 - 1)),
        request(Op.LOAD_BEGIN, number(2**60)),
        request(Op.LOAD_PART, number(77) + number(0) + rects((NAN, 0, 1, 1)) + number(0)),
    ],
)
async def test_what_is_wrong_is_refused_alike(pair: Pair, message: bytes) -> None:
    native, python = pair.ask(message)
    if message[:1] == bytes([Op.STATS]) and len(message) == 8:
        assert native[0] == python[0] == "ok" and len(native[1]) == len(python[1])
    elif message[:1] == bytes([Op.LOAD_BEGIN]) and native[0] == "ok":
        assert python[0] == "ok" and len(native[1]) == len(python[1]) == 8
    else:
        assert native == python
    for tree in pair.trees:
        tree.check()


def entries(count: int, seed: int) -> tuple[bytes, bytes]:
    random = np.random.default_rng(seed)
    low = random.integers(0, 20, (count, 2))
    rows = np.hstack((low, low + random.integers(0, 5, (count, 2)))).astype("<f8")
    return rows.tobytes(), random.integers(0, 50, count).astype("<u8").tobytes()


coordinates = st.integers(-2, 25).map(float) | st.sampled_from([NAN, INF, -INF, 1e300])
rect = st.tuples(coordinates, coordinates, coordinates, coordinates).map(lambda r: rects(r))
good_rect = st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(0, 5)] * 2).map(
    lambda r: rects((r[0], r[1], r[0] + r[2], r[1] + r[3]))
)
rows = st.builds(lambda n, seed: b"".join(entries(n, seed)), st.integers(0, 60), st.integers(0, 9))
some_id = st.integers(0, 50).map(number)
good_requests = st.one_of(
    st.builds(lambda r: request(Op.SEARCH, r), rect),
    st.builds(lambda r: request(Op.COUNT, r), rect),
    st.builds(lambda r, k: request(Op.NEAREST, r, k), rect, st.integers(0, 500)),
    st.builds(
        lambda r: request(Op.SEARCH_MANY, b"".join(r)), st.lists(rect | good_rect, max_size=9)
    ),
    st.builds(lambda r, i: request(Op.INSERT, r + i), rect | good_rect, some_id),
    st.builds(lambda r: request(Op.INSERT_MANY, r), rows),
    st.builds(lambda r, i: request(Op.DELETE, r + i), rect | good_rect, some_id),
    st.builds(lambda r, s, i: request(Op.UPDATE, r + s + i), good_rect, rect | good_rect, some_id),
    st.just(request(Op.BOUNDS)),
    st.builds(lambda n: request(Op.LEVEL_RECTS, argument=n), st.integers(0, 3)),
)
any_requests = st.one_of(
    st.builds(request, st.integers(0, 17), st.binary(max_size=120), st.integers(0, 2**32 - 1)),
    st.binary(max_size=60),
)


def alike(native: Answer, python: Answer, message: bytes) -> bool:
    """The same, but for the order of ids, which is the tree's."""
    if native[0] != "ok" or message[0] not in (Op.SEARCH, Op.SEARCH_MANY):
        return native == python
    return python[0] == "ok" and normal(native[1], message) == normal(python[1], message)


def normal(answer: bytes, message: bytes) -> list[list[int]]:
    queries = (len(message) - 8) // 32
    if message[0] == Op.SEARCH:
        return [sorted(np.frombuffer(answer, "<u8").tolist())]
    offsets, ids = _wire.unpack_many(answer, queries)
    return [sorted(ids[a:b].tolist()) for a, b in itertools.pairwise(offsets.tolist())]


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(good_requests | any_requests, min_size=10, max_size=60))
def test_any_requests_are_answered_alike(messages: list[bytes]) -> None:
    for pair in pairs():
        for message in messages:
            if message[:1] in (bytes([Op.STATS]), bytes([Op.LOAD_BEGIN])):
                continue  # times and tokens differ
            assert alike(*pair.ask(message), message), message
        assert len(pair.trees[0]) == len(pair.trees[1])
        for tree in pair.trees:
            tree.check()


def pairs() -> Iterator[Pair]:
    """One pair, whose service is started and stopped by hand: Hypothesis knows no event loop."""
    import anyio

    made = Pair()

    async def stop() -> None:
        await made.native.service.stop()

    made.native.service.start()
    try:
        yield made
    finally:
        anyio.run(stop)


async def test_a_load_step_by_step(pair: Pair) -> None:
    boxes, ids = entries(100, 1)

    def step(op: Op, rest: bytes = b"") -> tuple[Answer, Answer]:
        answers = []
        for call, token in zip((pair.native.service.call, pair.python), tokens, strict=True):
            try:
                answers.append(("ok", call(request(op, token + rest))))
            except l5.HandlerError as error:
                answers.append((error.type, error.message))
        return answers[0], answers[1]

    def begin(total: int) -> list[bytes]:
        native, python = pair.ask(request(Op.LOAD_BEGIN, number(total)))
        assert native[0] == python[0] == "ok"
        return [native[1], python[1]]

    def part(first: int, last: int) -> bytes:
        return number(first) + boxes[32 * first : 32 * last] + ids[8 * first : 8 * last]

    tokens = begin(100)
    native, python = pair.ask(request(Op.LOAD_BEGIN, number(5)))
    assert native == python and native[0] == "BusyError"
    assert step(Op.LOAD_PART, part(0, 60)) == (("ok", b""), ("ok", b""))
    for wrong in (part(0, 60), part(59, 70), part(61, 70), part(60, 100) + bytes(40)):
        native, python = step(Op.LOAD_PART, wrong)
        assert native == python and native[0] == "ValueError"
    native, python = step(Op.LOAD_END)  # too early: the load is over
    assert native == python and native[0] == "ValueError" and "60 of 100" in native[1]
    native, python = step(Op.LOAD_END)
    assert native == python and native[0] == "UnknownLoad"

    tokens = begin(100)
    assert step(Op.LOAD_ABORT) == (("ok", b""), ("ok", b""))
    tokens = begin(100)
    assert step(Op.LOAD_PART, part(0, 100)) == (("ok", b""), ("ok", b""))
    assert step(Op.LOAD_END) == (("ok", number(1)), ("ok", number(1)))
    tokens = begin(10)
    assert step(Op.LOAD_PART, part(0, 10)) == (("ok", b""), ("ok", b""))
    assert step(Op.LOAD_END) == (("ok", number(0)), ("ok", number(0)))
    tokens = begin(0)
    assert step(Op.LOAD_END) == (("ok", number(0)), ("ok", number(0)))
    for tree in pair.trees:
        assert len(tree) == 110
        tree.check()


async def test_the_tree_fills_up_alike(pair: Pair) -> None:
    room = pair.trees[0].stats().capacity_nodes * 21
    for seed in range(room):
        boxes, ids = entries(20, seed)
        message = request(Op.INSERT_MANY, boxes + ids)
        native, python = pair.ask(message)
        assert native == python
        if native[0] == "TreeFull":
            break
    assert native[0] == "TreeFull" and "row" in native[1]
    for op, body in ((Op.LOAD_BEGIN, number(room + 1)),):
        native, python = pair.ask(request(op, body))
        assert native == python and native[0] == "TreeFull"
    for tree in pair.trees:
        tree.check()


async def test_requests_are_counted(pair: Pair) -> None:
    for message in (b"", request(0), request(Op.COUNT, rects(UNIT)), request(Op.COUNT)):
        pair.ask(message)
    native, python = (_wire.unpack_stats(answer[1]) for answer in pair.ask(request(Op.STATS)))
    assert native.requests == python.requests == {"refused": 2, "count": 2, "stats": 1}
