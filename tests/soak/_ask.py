"""Requests: what a client asks, what it takes for an answer, and how a server answers."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from typing import Any

import anyio
import attrs

import l5

from ._process import Process
from ._talk import ENDS, flat
from ._text import ANSWER, ASK, FAIL, SLOW, Head, Wrong, random_piece

STREAMS_KEPT = 1024
ENOUGH_S = 30.0


class Answers:
    """A server's handler: checks a request, executes it once, answers with a piece of text."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen: OrderedDict[int, set[int]] = OrderedDict()

    def answer(self, request: bytes) -> bytes:
        """Answer a request; also the handler of a server whose handler is a plain function."""
        text = self._process.text
        try:
            head = text.check(request, ASK)
            self._once(head)
        except Wrong as error:
            self._process.wrong(f"a request: {error}")
            raise
        self._process.board.count(messages=1, bytes=head.size)
        if head.flags & FAIL:
            raise LookupError(f"{head.number} is to fail")
        return text.message(answer_to(head))

    async def answer_slowly(self, request: bytes) -> bytes:
        """Answer, after a while if the request says so."""
        if request[5] & SLOW:
            await anyio.sleep(random.random() * 0.02)
        return self.answer(request)

    async def answer_in_context(self, request: bytes, context: l5.RequestContext) -> bytes:
        """Answer, given the context of the request as well."""
        del context
        return await self.answer_slowly(request)

    def _once(self, head: Head) -> None:
        seen = self._seen.setdefault(head.stream, set())
        self._seen.move_to_end(head.stream)
        if head.number in seen:
            raise Wrong(f"{head} was to be executed twice")
        seen.add(head.number)
        while len(self._seen) > STREAMS_KEPT:
            self._seen.popitem(last=False)


def answer_to(head: Head) -> Head:
    """Return the header of the answer that a request must get."""
    return Head(ANSWER, head.stream, head.number, 0, head.reply_offset, head.reply_size)


@attrs.define(eq=False)
class Asking:
    """A client's end of a connection to a server that answers requests."""

    process: Process
    connection: l5.Connection
    peer: str
    rng: random.Random
    stream: int
    count: int
    tasks: int
    number: int = 0
    answered: int = 0
    why: str = "cancelled"

    @property
    def label(self) -> str:
        """Name the connection on the board."""
        return f"{self.peer} {self.connection.transport} stream {self.stream:#x}"

    async def run(self) -> None:
        """Ask everything; how it ended stands in `why` and in the log."""
        began = time.monotonic()
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self.tasks):
                    group.start_soon(self._ask_many)
            self.why = "done"
        except* ENDS:
            self.why = "broken"
        except* l5.RequestFailed as errors:
            self.why = "refused"
            for error in flat(errors):
                if getattr(error, "remote_type", "") != "ServerClosing":
                    self.process.wrong(f"{self.label}: {error!r}")
        except* Wrong as errors:
            self.why = "wrong"
            for error in flat(errors):
                self.process.wrong(f"{self.label}: {error}")
        finally:
            self.process.log(
                what="asked",
                stream=self.stream,
                peer=self.peer,
                began=began,
                why=self.why,
                tried=self.number,
                answered=self.answered,
                transport=self.connection.transport,
            )

    async def _ask_many(self) -> None:
        rng, board = self.rng, self.process.board
        for _ in range(max(1, self.count // self.tasks)):
            if self.process.leaving:
                return
            head = self._next()
            limit = rng.choice((0.0, 0.0005, 0.003, 0.02)) if rng.random() < 0.15 else None
            with anyio.move_on_after(limit) as scope:
                with board.waiting(f"answer {head.number} ({head.reply_size} B) of {self.label}"):
                    await self._ask(head)
            if scope.cancelled_caught:
                board.count(cancelled=1)
            if rng.random() < 0.05:
                await anyio.sleep(rng.random() * 0.05)

    def _next(self) -> Head:
        rng = self.rng
        self.number += 1
        offset, size = random_piece(rng)
        back, back_size = random_piece(rng)
        if rng.random() < 0.5:  # most of the time one of the two is short
            size = min(size, 300)
        flags = FAIL if rng.random() < 0.05 else SLOW if rng.random() < 0.1 else 0
        return Head(ASK, self.stream, self.number, 0, offset, size, back, back_size, flags)

    async def _ask(self, head: Head) -> None:
        message = self.process.text.message(head)
        try:
            answer = await self._by_some_way(head, message)
        except l5.DeadlineExceeded:
            self.process.board.count(cancelled=1)
            return
        except l5.RequestFailed as error:
            if not head.flags & FAIL or error.remote_type != "LookupError":
                raise
            return
        if answer is None:
            return
        if head.flags & FAIL:
            raise Wrong(f"{head} was to fail, and was answered")
        got = self.process.text.check(answer, ANSWER)
        if got != answer_to(head):
            raise Wrong(f"{head} got the answer {got}")
        self.answered += 1
        self.process.board.count(messages=1, bytes=head.size + got.size)

    async def _by_some_way(self, head: Head, message: bytes) -> bytes | None:
        """Return the answer, or None where the asker lost interest."""
        way = self.rng.randrange(10)
        if way == 0:
            return await self.connection.request(message, deadline=self.rng.choice((0.001, 0.05)))
        if way == 1:
            return await self.connection.request(message, deadline=ENOUGH_S * 100)
        if way == 2:
            async with self.connection.reserve(len(message)) as slot:
                with slot.view as view:
                    view[:] = message
                return await slot.request()
        if way == 3:
            return await self._in_pieces(message)
        return await self.connection.request(message)

    async def _in_pieces(self, message: bytes) -> bytes | None:
        pieces: list[bytes] = []
        leave_at = self.rng.choice((0, 1, 3, 1 << 30, 1 << 30))
        async with self.connection.request_stream(message) as stream:
            async for piece in stream:
                pieces.append(bytes(piece))
                if len(pieces) >= leave_at:
                    return None
        return b"".join(pieces)


def handler_of(process: Process, kind: str) -> Any:
    """Return the handler for a kind of server."""
    answers = Answers(process)
    return {
        "plain": answers.answer,
        "async": answers.answer_slowly,
        "context": answers.answer_in_context,
    }[kind]
