"""Servers in threads: what they answer, how they end, what they refuse."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from time import sleep
from typing import Any

import anyio
import pytest

import l5
import l5.blocking
from l5.blocking._budget import ThreadBudget, TotalBudget
from l5.testing import pattern
from tests.blocking._ends import PATIENCE_S, SMALL, TRANSPORTS, in_thread, until, url_of

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
THREADS = pytest.mark.parametrize("threads", [1, 3])


class Desk:
    """Answers by the first byte: ``w`` waits for the gate, ``!`` raises, ``#N`` gives N bytes."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[bytes] = []

    def handle(self, request: bytes) -> Any:
        self.asked.append(request)
        command = request[:1]
        if command == b"w":
            self.gate.wait(PATIENCE_S)
        elif command == b"!":
            raise ValueError("no " + request[1:].decode())
        elif command == b"#":
            return pattern(int(request[1:]))
        elif command == b"?":
            return 42
        return request


@THREADS
@each_transport
@pytest.mark.anyio
async def test_an_async_client(tmp_path: Path, transport: str, threads: int) -> None:
    """The same protocol: a server in threads answers clients on any loop."""
    desk = Desk()
    url = url_of(tmp_path, transport)
    with l5.blocking.serve(desk.handle, url, threads=threads, **SMALL) as server:
        async with await l5.connect(server.urls[0], **SMALL) as client:
            for size in (0, 100, 20_000, 400_000):
                assert await client.request(pattern(size)) == pattern(size)
                assert await client.request(b"#%d" % size) == pattern(size)
                assert await client.request(b"d", deadline=60.0) == b"d"
            with pytest.raises(l5.RequestFailed) as caught:
                await client.request(b"!words")
            assert (caught.value.remote_type, caught.value.remote_message) == (
                "ValueError",
                "no words",
            )
            with pytest.raises(l5.RequestFailed, match="must return bytes"):
                await client.request(b"?")
            async with anyio.create_task_group() as group:
                for number in range(30):
                    group.start_soon(_ask, client, b"=%d" % number + bytes(1000 * number))
            async with client.request_stream(b"#300000") as pieces:
                assert b"".join([piece async for piece in pieces]) == pattern(300_000)
            assert client.statistics().in_flight == 0
        until(lambda: server.statistics().requests == 45)
        assert server.statistics().failed == 2


async def _ask(client: l5.Connection, request: bytes) -> None:
    assert await client.request(request) == request


@THREADS
@each_transport
def test_a_deadline_that_passes_in_the_queue(tmp_path: Path, transport: str, threads: int) -> None:
    """What nobody waits for any more is not begun; what was cancelled before, neither."""
    desk = Desk()
    with (
        l5.blocking.serve(desk.handle, url_of(tmp_path, transport), threads=threads) as server,
        l5.blocking.connect(server.urls[0]) as client,
    ):
        waiting = [threading.Thread(target=client.request, args=(b"w",)) for _ in range(threads)]
        for thread in waiting:
            thread.start()
        until(lambda: len(desk.asked) == threads)
        with pytest.raises(l5.DeadlineExceeded):
            client.request(b"late", deadline=0.02)
        with pytest.raises(TimeoutError):
            client.request(b"cancelled", timeout=0.02)
        desk.gate.set()
        for thread in waiting:
            thread.join(PATIENCE_S)
        assert client.request(b"next") == b"next"
        assert set(desk.asked) == {b"w", b"next"}
        until(lambda: client.request(b"x") and not client.statistics().in_flight)


@THREADS
def test_the_context(tmp_path: Path, threads: int) -> None:
    seen: list[l5.RequestContext] = []

    def handle(request: bytes, context: l5.RequestContext) -> bytes:
        seen.append(context)
        return request

    url = url_of(tmp_path, "shm")
    with l5.blocking.serve(handle, url, threads=threads) as server:
        with l5.blocking.connect(server.urls[0]) as client:
            assert client.request(b"x") == b"x"
            assert client.request(b"x", deadline=30.0) == b"x"
    assert [context.transport for context in seen] == ["shm", "shm"]
    assert seen[0].deadline is None
    assert seen[1].deadline is not None and 0 < seen[1].deadline <= 30.0


@each_transport
def test_per_connection(tmp_path: Path, transport: str) -> None:
    def handle(connection: l5.blocking.Connection) -> None:
        for message in connection:
            connection.send(message[::-1])

    url = url_of(tmp_path, transport)
    with l5.blocking.serve(handle, url, per="connection") as server:
        with l5.blocking.connect(server.urls[0]) as client:
            for message in (b"abc", b"", pattern(300_000)):
                client.send(message)
                assert client.receive() == message[::-1]
            until(lambda: server.statistics().connections == 1)
        until(lambda: not server.statistics().connections)
        idle = l5.blocking.connect(server.urls[0])
    with idle, pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        idle.receive()


@THREADS
@each_transport
def test_stopping_lets_running_requests_finish(
    tmp_path: Path, transport: str, threads: int
) -> None:
    desk = Desk()
    with l5.blocking.serve(desk.handle, url_of(tmp_path, transport), threads=threads) as server:
        with l5.blocking.connect(server.urls[0]) as client:
            with in_thread(client.request, b"w") as answer:
                until(lambda: desk.asked)
                with in_thread(server.stop, PATIENCE_S) as stopped:
                    sleep(0.02)
                    assert not server.wait_closed(0.0)
                    desk.gate.set()
            assert (answer, stopped) == ([b"w"], [None])
            assert server.wait_closed(0.0)
            with pytest.raises((anyio.BrokenResourceError, l5.RequestFailed)):
                client.request(b"late")
        with pytest.raises(l5.ConnectError):
            l5.blocking.connect(server.urls[0])


@THREADS
@each_transport
def test_the_grace_period_ends(tmp_path: Path, transport: str, threads: int) -> None:
    """The client is told at once, although the handler does not return."""
    desk = Desk()
    url = url_of(tmp_path, transport)
    with l5.blocking.serve(desk.handle, url, threads=threads, grace=0.01) as server:
        client = l5.blocking.connect(server.urls[0])
        with client, in_thread(client.request, b"w") as outcome:
            until(lambda: desk.asked)
            server.stop()
        assert isinstance(outcome[0], anyio.BrokenResourceError)
    desk.gate.set()
    until(lambda: not server.statistics().workers)


def test_a_handler_may_stop_the_server(tmp_path: Path) -> None:
    def handle(request: bytes) -> bytes:
        server.stop()
        return request

    with l5.blocking.serve(handle, url_of(tmp_path, "shm")) as server:
        with l5.blocking.connect(server.urls[0]) as client:
            assert client.request(b"x") == b"x"
            with pytest.raises((anyio.BrokenResourceError, l5.RequestFailed)):
                client.request(b"x")
        assert server.wait_closed(PATIENCE_S)


@pytest.mark.parametrize("transport", ["unix"])
def test_a_handler_that_fails_is_logged(
    tmp_path: Path, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = url_of(tmp_path, transport)

    def handle(connection: l5.blocking.Connection) -> None:
        raise LookupError("this one fails")

    with caplog.at_level(logging.ERROR), l5.blocking.serve(handle, url, per="connection") as server:
        with l5.blocking.connect(server.urls[0]) as client:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                client.receive()
    assert "this one fails" in caplog.text


def test_what_is_refused(tmp_path: Path) -> None:
    url = url_of(tmp_path, "unix")

    async def handle(request: bytes) -> bytes:
        return request

    with pytest.raises(TypeError, match="event loop"):
        l5.blocking.serve(handle, url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes the request"):
        l5.blocking.serve(lambda: b"", url)
    with pytest.raises(ValueError, match="per 'request' or per 'connection'"):
        l5.blocking.serve(len, url, per="thread")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads=0"):
        l5.blocking.serve(len, url, threads=0)
    with pytest.raises(l5.AddressError):
        l5.blocking.serve(lambda request: request)
    with l5.blocking.serve(lambda request: handle(request), url) as server:  # type: ignore
        with l5.blocking.connect(server.urls[0]) as client:
            with pytest.raises(l5.RequestFailed, match="async"):
                client.request(b"x")
        with pytest.raises(OSError, match="listens there already"):
            l5.blocking.listen(url)


def test_no_more_connections_than_agreed(tmp_path: Path) -> None:
    url = url_of(tmp_path, "shm")
    with l5.blocking.serve(lambda request: request, url, connections_max=2) as server:
        with l5.blocking.connect(url) as one, l5.blocking.connect(url) as two:
            assert one.request(b"1") + two.request(b"2") == b"12"
            until(lambda: server.statistics().connections == 2)
            with pytest.raises(l5.ConnectError, match="busy"):
                l5.blocking.connect(url)
        until(lambda: not server.statistics().connections)
        with l5.blocking.connect(url) as again:
            assert again.request(b"x") == b"x"
            until(lambda: server.statistics().workers == 1)


def test_connections_that_nobody_accepts_are_counted_and_closed(tmp_path: Path) -> None:
    url = url_of(tmp_path, "shm")
    with l5.blocking.listen(url, connections_max=1) as listener:
        with l5.blocking.connect(url) as waiting:
            with pytest.raises(l5.ConnectError, match="busy"):
                l5.blocking.connect(url)
            with listener.accept() as accepted:
                accepted.send(b"x")
            assert waiting.receive() == b"x"
        until(lambda: not listener._acceptor.connections)
        left = l5.blocking.connect(url)
    with left, pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        left.receive()


# ---- memory of all connections together ----------------------------------------------------------


class Hub:
    hungry = False
    woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_total_over_threads() -> None:
    """Within the total; else the oldest message alone; what is freed wakes who was refused."""
    from l5._partial import Partial

    asked: list[str] = []
    total = TotalBudget(100)
    first, second = ThreadBudget(1000, total), ThreadBudget(1000, total)
    first.hub, second.hub = Hub(), Hub()  # type: ignore[assignment]
    old = Partial((False, 1), lambda: asked.append("old"))
    young = Partial((False, 1), lambda: asked.append("young"))
    assert first.enter(old, 40) and second.enter(young, 40)
    assert not second.extend(young, 90)
    assert first.extend(old, 500), "the one that has waited longest"
    assert total.used_bytes == 540
    third = Partial((False, 2), lambda: None)
    assert not second.enter(third, 10), "twice the total is in use"
    first.leave(old)
    assert (second.hub.hungry, second.hub.woken, asked) == (True, 1, [])  # type: ignore
    second.retry()
    assert asked == ["young"]
    assert second.extend(young, 90)
    second.leave(young)
    assert total.used_bytes == 0


def test_long_requests_of_many_clients_share_a_small_total(tmp_path: Path) -> None:
    url = url_of(tmp_path, "shm")
    limits = {**SMALL, "reassembly_bytes": 1 << 19}
    payload = pattern(400_000)
    with l5.blocking.serve(
        lambda request: request[:10], url, **limits, total_reassembly_bytes=1 << 19
    ) as server:

        def ask() -> None:
            with l5.blocking.connect(url, **limits) as client:
                for _ in range(5):
                    assert client.request(payload) == payload[:10]

        clients = [in_thread(ask) for _ in range(4)]
        outcomes = [client.__enter__() for client in clients]
        for client in clients:
            client.__exit__(None, None, None)
        assert outcomes == [[None]] * 4
        until(lambda: server.statistics().requests == 20)
        until(lambda: server._total.used_bytes == 0)
