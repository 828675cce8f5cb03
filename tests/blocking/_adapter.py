"""A blocking connection as the conformance suite wants it: every call runs in a thread of its own.

Cancelled, the call is told that its time is over: it has the same outcome as after a timeout that
ended at that moment, and its result, if it had one already, is not thrown away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import l5
import l5.blocking
from l5.blocking import _asleep, _hub
from tests.blocking._ends import wrap_sleeps

T = TypeVar("T")

SLICE_S = 0.005
SLICE_MS = 5
_threads = ThreadPoolExecutor(300)
_here = threading.local()


class _Outcome:
    def __init__(self) -> None:
        self.cancelled = False
        self.value: Any = None
        self.error: BaseException | None = None


async def in_thread(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call `function` in a thread; cancelled, let it end as a call whose time is over."""
    outcome, done = _Outcome(), anyio.Event()
    token = anyio.lowlevel.current_token()
    task = anyio.get_current_task().id

    def work() -> None:
        _here.outcome, _here.task = outcome, task
        try:
            outcome.value = function(*args, **options)
        except BaseException as error:
            outcome.error = error
        finally:
            _here.outcome = None
            anyio.from_thread.run_sync(done.set, token=token)

    _threads.submit(work)
    try:
        await done.wait()
    except BaseException:
        outcome.cancelled = True
        with anyio.CancelScope(shield=True):
            await done.wait()
        if outcome.error is not None:
            raise
    if outcome.error is not None:
        try:
            raise outcome.error
        finally:
            outcome.error = None
    return outcome.value


@pytest.fixture(autouse=True)
def calls_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls look from time to time whether they have been cancelled."""
    original = _hub.Call.rest

    def rest(call: _hub.Call) -> None:
        outcome: _Outcome | None = getattr(_here, "outcome", None)
        wish = call.wish
        assert wish is not None
        while outcome is not None:
            call.over = outcome.cancelled
            left = SLICE_S if call.expires is None else call.expires - monotonic()
            if call.over or left <= 0:
                break
            if wish(min(left, SLICE_S)):
                return
        if not call.over:
            original(call)

    monkeypatch.setattr(_hub.Call, "rest", rest)

    def in_slices(sleep: _asleep.Sleep, timeout_ms: int, *id: int) -> Any:
        outcome: _Outcome | None = getattr(_here, "outcome", None)
        if outcome is None:
            return sleep(timeout_ms, *id)
        if outcome.cancelled:
            return None  # then the engine goes on, and looks; so it does after a slice
        return sleep(timeout_ms if 0 <= timeout_ms <= SLICE_MS else SLICE_MS, *id)

    wrap_sleeps(monkeypatch, lambda sleep: partial(in_slices, sleep))


@pytest.fixture(autouse=True)
def tasks_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell callers apart by the suite's tasks: one thread may work for two of them in turn."""

    def caller(hub: _hub.BlockingHub) -> object:
        return getattr(_here, "task", None) or threading.get_ident()

    monkeypatch.setattr(_hub.BlockingHub, "caller", caller)


class AsyncView:
    """Looks like an `l5.Connection`."""

    def __init__(self, connection: l5.blocking.Connection) -> None:
        self.blocking = connection
        self._session = connection._session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blocking, name)  # the facts

    async def request(self, payload: Any, *, deadline: float | None = None) -> bytes:
        return await in_thread(self.blocking.request, payload, deadline=deadline)

    async def send(self, item: Any) -> None:
        await in_thread(self.blocking.send, item)

    async def receive(self) -> bytes:
        return await in_thread(self.blocking.receive)

    async def receive_into(self, buffer: Any) -> int:
        return await in_thread(self.blocking.receive_into, buffer)

    def __aiter__(self) -> AsyncView:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send_eof(self) -> None:
        await in_thread(self.blocking.send_eof)

    async def aclose(self) -> None:
        await in_thread(self.blocking.close)

    def lease(self) -> _Block:
        return _Block(self.blocking.lease())

    def reserve(self, size_bytes: int) -> _Block:
        return _Block(self.blocking.reserve(size_bytes))

    def request_stream(self, payload: Any, *, deadline: float | None = None) -> _Block:
        return _Block(self.blocking.request_stream(payload, deadline=deadline))

    def as_byte_stream(self) -> l5.ConnectionByteStream:
        return l5.ConnectionByteStream(self)  # type: ignore[arg-type]

    async def __aenter__(self) -> AsyncView:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Block:
    """A context manager of a blocking connection, and what it gives."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def view(self) -> memoryview:
        return self._inner.view

    @property
    def in_place(self) -> bool:
        return self._inner.in_place

    async def send(self, size_bytes: int | None = None) -> None:
        await in_thread(self._inner.send, size_bytes)

    async def request(self, size_bytes: int | None = None) -> bytes:
        return await in_thread(self._inner.request, size_bytes)

    def __aiter__(self) -> _Block:
        return self

    async def __anext__(self) -> bytes:
        piece = await in_thread(lambda: next(self._inner, None))
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> _Block:
        await in_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self._inner.__exit__, None, None, None)
