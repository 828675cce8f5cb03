"""The table of requests against a model, in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from l5._errors import DeadlineExceeded, RemoteProtocolError, RequestFailed
from l5._requests import DEADLINE_TYPE, Request, RequestTable


class Bell:
    """What a request wakes."""

    def __init__(self) -> None:
        self.rung = 0

    def wake(self) -> None:
        self.rung += 1


class Requests(RuleBasedStateMachine):
    """Open, answer, fail, abandon, forget and lose requests at random."""

    opened = Bundle("opened")

    @initialize()
    def begin(self) -> None:
        self.table = RequestTable()
        self.owed: dict[int, Request] = {}
        self.next_id = 1
        self.late = 0
        self.told: set[int] = set()

    @rule(target=opened, streaming=st.booleans())
    def open(self, streaming: bool) -> Request:
        bell = Bell()
        request = self.table.open(self.next_id, bell, streaming=streaming)  # type: ignore[arg-type]
        self.owed[self.next_id] = request
        self.next_id += 1
        return request

    @rule(request=opened, reply=st.binary(max_size=5))
    def answer(self, request: Request, reply: bytes) -> None:
        if request.id not in self.owed:
            with pytest.raises(RemoteProtocolError):
                self.table.answer(request.id, reply)
            return
        self.table.answer(request.id, reply)
        del self.owed[request.id]
        assert request.done
        if request.abandoned:
            self.late += 1
            assert request.reply is None and not request.pieces
        elif request.streaming:
            assert request.pieces[-1] == reply
        else:
            assert request.result() == reply
            assert request.waiter.rung == 1  # type: ignore[attr-defined]

    @rule(request=opened, type_name=st.sampled_from(["ValueError", DEADLINE_TYPE]))
    def fail(self, request: Request, type_name: str) -> None:
        if request.id not in self.owed:
            with pytest.raises(RemoteProtocolError):
                self.table.fail(request.id, type_name, "why")
            return
        self.table.fail(request.id, type_name, "why")
        del self.owed[request.id]
        if request.abandoned:
            self.late += 1
            return
        expected = DeadlineExceeded if type_name == DEADLINE_TYPE else RequestFailed
        with pytest.raises(expected):
            request.result()

    @rule(request=opened)
    def abandon(self, request: Request) -> None:
        tell = self.table.abandon(request)
        assert tell is (request.id in self.owed and request.id not in self.told)
        self.told.add(request.id)

    @rule(request=consumes(opened))
    def forget(self, request: Request) -> None:
        if not request.done:
            self.table.forget(request)
            self.owed.pop(request.id, None)
            assert not self.table.abandon(request)

    @rule()
    def lose_all(self) -> None:
        error = ConnectionError("gone")
        lost = list(self.owed.values())
        self.table.fail_all(error)
        self.owed.clear()
        for request in lost:
            assert request.done
            if not request.streaming:
                with pytest.raises(ConnectionError):
                    request.result()

    @rule(id=st.integers(0, 100))
    def answer_of_nothing(self, id: int) -> None:
        if id not in self.owed:
            with pytest.raises(RemoteProtocolError):
                self.table.get(id)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "table"):
            assert len(self.table) == len(self.owed)
            assert self.table.late_answers == self.late


Requests.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRequests = Requests.TestCase
