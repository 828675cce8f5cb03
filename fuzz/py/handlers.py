"""The R-tree's handler in C and in Python: the same requests, the same answers."""

import struct
from typing import Any

import l5
from catfish_app import NativeTree, RTree, TreeHandler
from catfish_app._wire import Op
from l5 import native

from ._steps import Steps

CAPACITY = 60
BODIES: dict[int, tuple[int, int]] = {  # rectangles, and bytes behind them
    Op.SEARCH: (1, 0),
    Op.COUNT: (1, 0),
    Op.NEAREST: (1, 0),
    Op.INSERT: (1, 8),
    Op.DELETE: (1, 8),
    Op.UPDATE: (2, 8),
    Op.LOAD_BEGIN: (0, 8),
    Op.LOAD_END: (0, 8),
    Op.LOAD_ABORT: (0, 8),
}


Answer = tuple[str, Any]


class _Pair:
    """Both handlers, each with a tree of its own, and the token that each gave last."""

    def __init__(self) -> None:
        self.trees = RTree(capacity=CAPACITY), RTree(capacity=CAPACITY)
        self.native = NativeTree(self.trees[0])
        self.python = TreeHandler(self.trees[1])
        self.tokens = [bytes(8), bytes(8)]
        made = native.ffi.new("struct l5_service **")
        options = native.ffi.new("struct l5_service_options *", self.native.service._options)
        assert native.lib.l5_service_new(options, made) == 0
        self.service = native.ffi.gc(made[0], native.lib.l5_service_free)

    def call_c(self, request: bytes) -> bytes:
        self.native.service._service = self.service  # to call the handler here needs no thread
        try:
            return self.native.service.call(request)
        finally:
            self.native.service._service = None

    def ask(self, request: bytes, *, with_token: bool) -> tuple[Answer, Answer]:
        answers: list[Answer] = []
        for call, token in zip((self.call_c, self.python), self.tokens, strict=True):
            sent = request[:8] + token + request[16:] if with_token else request
            try:
                answers.append(("ok", call(sent)))
            except l5.HandlerError as error:
                answers.append((error.type, error.message))
        return answers[0], answers[1]


def _request(steps: Steps) -> bytes:
    how, op = steps.number(), steps.number() % 16
    if how & 128:  # the bytes as they are
        return steps.take(steps.number(2) % 400)
    argument = steps.number(4) if how & 64 else steps.number()
    count = steps.number() % 20
    rects, more = BODIES.get(op, (0, 0))
    if op in (Op.SEARCH_MANY, Op.INSERT_MANY, Op.LOAD_PART):
        rects = count
        more = {Op.SEARCH_MANY: 0, Op.INSERT_MANY: 8 * count}.get(op, 8 * count)
    body = b"".join(_rect(steps) for _ in range(rects)) + steps.take(more).ljust(more, b"\0")
    if op == Op.LOAD_BEGIN:
        body = body[:1] + bytes(7)
    if op == Op.LOAD_PART:
        body = bytes(8) + steps.number().to_bytes(8, "little") + body
    request = bytearray(struct.pack("<BBHI", op, 1, 0, argument) + body)
    if how & 32:  # and now something wrong with it
        request[steps.number(2) % len(request)] = steps.number()
    if how & 16:
        del request[steps.number(2) % len(request) :]
    return bytes(request)


def _rect(steps: Steps) -> bytes:
    x, y, width, height = steps.number(), steps.number(), steps.number() % 8, steps.number() % 8
    return struct.pack("<4d", x, y, x + width, y + height)


def _agree(request: bytes, answers: tuple[Answer, Answer], pair: _Pair) -> None:
    c, python = answers
    op = request[0] if len(request) >= 8 else 0
    if c[0] == python[0] == "ok" and op in (Op.STATS, Op.LOAD_BEGIN):  # times, and random tokens
        assert len(c[1]) == len(python[1])
        if op == Op.LOAD_BEGIN:
            pair.tokens = [c[1], python[1]]
    else:
        assert c == python, request


def one_input(data: bytes) -> None:
    steps = Steps(data)
    pair = _Pair()
    while steps:
        request = _request(steps)
        loading = len(request) >= 16 and request[0] >= Op.LOAD_PART and bool(request[15] & 1 == 0)
        _agree(request, pair.ask(request, with_token=loading), pair)
    assert len(pair.trees[0]) == len(pair.trees[1])
    for tree in pair.trees:
        tree.check()
