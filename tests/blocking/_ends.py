"""Both ends for the tests of blocking connections, and waits that end when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any

import pytest

import l5.blocking
from l5.blocking import _asleep, _hub

PATIENCE_S = 60.0
TRANSPORTS = ("shm", "unix")
SMALL = {
    "ring_bytes": 1 << 16,
    "segment_bytes": 1 << 14,
    "credit_bytes": 1 << 15,
    "data_window_bytes": 1 << 16,
    "max_message_bytes": 1 << 19,
}
"""Limits that everything meets soon."""


def url_of(directory: Any, transport: str) -> str:
    return f"l5+unix://{directory}/s?transports={transport}"


@contextmanager
def pair(
    directory: Any, transport: str, **options: Any
) -> Generator[tuple[l5.blocking.Connection, l5.blocking.Connection]]:
    """Both ends of a connection."""
    url = url_of(directory, transport)
    with (
        l5.blocking.listen(url, **SMALL, **options) as listener,
        l5.blocking.connect(listener.urls[0], **SMALL, **options) as client,
        listener.accept(timeout=PATIENCE_S) as server,
    ):
        assert client.transport == server.transport == transport
        yield client, server


@contextmanager
def in_thread(function: Callable[..., object], *args: Any) -> Generator[list[Any]]:
    """Run `function` beside the block; what it returned, or raised, is the list's one entry."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(function(*args))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"


def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds."""
    ends = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < ends, "waited in vain"
        sleep(0.001)


def wrap_sleeps(
    monkeypatch: pytest.MonkeyPatch, wrap: Callable[[_asleep.Sleep], _asleep.Sleep]
) -> None:
    """Have `wrap` stand in for what sleeps in C, on connections that are made from now on."""
    sleeps_of = _asleep.sleeps_of

    def wrapped(hub: _hub.BlockingHub, ring: Any) -> tuple[_asleep.Sleep, _asleep.Sleep]:
        for_answer, for_data = sleeps_of(hub, ring)
        return wrap(for_answer), wrap(for_data)

    monkeypatch.setattr(_asleep, "sleeps_of", wrapped)


class Waits:
    """Counts the waits of this thread, and ends the `at`-th one: by time, or by an exception."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._thread = threading.get_ident()
        self._original = _hub.Call.rest
        self.at = 0
        self.count = 0
        self.error: BaseException | None = None
        self.resting = False
        """Whether the operation waits now, and will not be ended by us."""
        self._expired = False

        def rest(call: _hub.Call) -> None:
            self._rest(call)

        monkeypatch.setattr(_hub.Call, "rest", rest)
        wrap_sleeps(monkeypatch, lambda sleep: partial(self._sleep, sleep))

    def _sleep(self, original: _asleep.Sleep, *args: Any) -> Any:
        """Stand in for the sleep in C; the engine's first wait follows when its time is over."""
        if threading.get_ident() != self._thread or not self.at:
            return original(*args)
        self.count += 1
        if self.count == self.at:
            if self.error is not None:
                raise self.error
            self._expired = True
            return None
        self.resting = True
        try:
            return original(*args)
        finally:
            self.resting = False

    def _rest(self, call: _hub.Call) -> None:
        if threading.get_ident() == self._thread and self._expired:
            self._expired, call.over = False, True
            return
        if threading.get_ident() == self._thread and self.at:
            self.count += 1
            if self.count == self.at:
                if self.error is not None:
                    raise self.error
                call.over = True
                return
            self.resting = True
            try:
                self._original(call)
            finally:
                self.resting = False
            return
        self._original(call)

    def interrupted(self, operation: Callable[[], object], at: int) -> object:
        """Run `operation`, ending its `at`-th wait; return its outcome, an exception as such."""
        self.at, self.count, self._expired = at, 0, False
        try:
            return operation()
        except BaseException as error:
            if isinstance(error, pytest.fail.Exception | AssertionError):
                raise
            return error
        finally:
            self.at = 0

    def let_it_rest(self) -> None:
        """(Other threads) return once the operation waits, or is over: however busy the machine."""
        while self.at and not self.resting:
            sleep(0.001)

    def at_every_wait(
        self,
        operation: Callable[[int], object],
        check: Callable[[int, object], None],
        *,
        least: int = 1,
    ) -> None:
        """End the first wait of ``operation(1)``, the second of ``operation(2)``, ... ."""
        for at in range(1, 500):
            outcome = self.interrupted(lambda: operation(at), at)  # noqa: B023 - called at once
            check(at, outcome)
            if self.count < at and at > least:
                return
        raise AssertionError("the operation waits for ever")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)
