"""Several threads on one connection, signal handlers, forks, and the interpreter's end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import anyio
import pytest

import l5
import l5.blocking
from l5.testing import pattern
from tests.blocking._ends import PATIENCE_S, SMALL, TRANSPORTS, in_thread, pair, until, url_of

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@each_transport
def test_requests_of_many_threads_are_in_flight_together(tmp_path: Path, transport: str) -> None:
    gate = threading.Event()

    def handle(request: bytes) -> bytes:
        gate.wait(PATIENCE_S)
        return request[::-1]

    answers: dict[int, bytes] = {}

    def ask(client: l5.blocking.Connection, number: int) -> None:
        request = pattern(number * 3000, seed=number)
        answers[number] = client.request(request)
        assert answers[number] == request[::-1]

    url = url_of(tmp_path, transport)
    with (
        l5.blocking.serve(handle, url, threads=8, **SMALL) as server,
        l5.blocking.connect(server.urls[0], **SMALL) as client,
    ):
        threads = [threading.Thread(target=ask, args=(client, n)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        until(lambda: server.statistics().running == 8)
        assert client.statistics().in_flight == 8
        gate.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(answers) == list(range(1, 9))
        until(lambda: server.statistics().running == 0)
        assert server.statistics().requests == 8


@each_transport
def test_requests_of_one_call_are_in_flight_together(tmp_path: Path, transport: str) -> None:
    together = threading.Barrier(8)

    def handle(request: bytes) -> bytes:
        together.wait(PATIENCE_S)  # broken, unless all eight come before the first is answered
        return request[::-1]

    url = url_of(tmp_path, transport)
    with (
        l5.blocking.serve(handle, url, threads=8, **SMALL) as server,
        l5.blocking.connect(server.urls[0], **SMALL) as client,
    ):
        assert client.request_many([b"ab"] * 8, window=8) == [b"ba"] * 8
        requests = [pattern(30_000, seed=number) for number in range(24)]  # longer than a segment
        answers = client.request_many(requests, window=8)
        assert answers == [request[::-1] for request in requests]
        assert client.statistics().in_flight == 0


@each_transport
def test_one_thread_receives_while_another_sends(tmp_path: Path, transport: str) -> None:
    messages = [pattern(size, seed=size) for size in (0, 10, 20_000, 70_000, 3)] * 10

    def both_ways(end: l5.blocking.Connection) -> None:
        with in_thread(lambda: [end.receive() for _ in messages]) as got:
            for message in messages:
                end.send(message)
        assert got == [messages]

    with pair(tmp_path, transport) as (client, server), in_thread(both_ways, server) as outcome:
        both_ways(client)
    assert outcome == [None]


@each_transport
def test_one_receiver_at_a_time(tmp_path: Path, transport: str) -> None:
    with pair(tmp_path, transport) as (client, server), in_thread(server.receive) as got:
        until(lambda: server._session.receiver)
        with pytest.raises(anyio.BusyResourceError):
            server.receive()
        client.send(b"for the first one")
    assert got == [b"for the first one"]


@each_transport
@pytest.mark.parametrize("who", ["us", "peer"])
def test_closing_wakes_every_call(tmp_path: Path, transport: str, who: str) -> None:
    def clog(end: l5.blocking.Connection) -> None:
        while True:
            end.send(bytes(5000))

    calls: list[Callable[[Any], object]] = [lambda end: end.receive(), clog, _ask]
    expected = [
        anyio.ClosedResourceError if who == "us" else anyio.EndOfStream,
        anyio.ClosedResourceError if who == "us" else anyio.BrokenResourceError,
        anyio.ClosedResourceError if who == "us" else anyio.BrokenResourceError,
    ]
    for call, error in zip(calls, expected, strict=True):
        with pair(tmp_path, transport) as (client, server), in_thread(call, client) as outcome:
            sleep(0.05)
            (client if who == "us" else server).close()
        assert isinstance(outcome[0], error), outcome


def _ask(end: l5.blocking.Connection) -> bytes:
    return end.request(b"nobody answers before it is in a call")


@each_transport
def test_a_signal_handler_gets_an_error_or_closes(tmp_path: Path, transport: str) -> None:
    """It runs on top of the call that waits, which cannot go on before it returns."""
    told: list[BaseException] = []

    def ask(*_: object) -> None:
        try:
            server.receive()
        except anyio.BusyResourceError as error:
            told.append(error)

    def close(*_: object) -> None:
        server.close()

    main = threading.get_ident()
    with pair(tmp_path, transport) as (client, server):

        def send_signals() -> None:
            until(lambda: server._session.receiver)
            sleep(0.02)
            signal.pthread_kill(main, signal.SIGUSR1)
            until(lambda: told)
            client.send(b"sound")
            until(lambda: closing)
            sleep(0.02)
            signal.pthread_kill(main, signal.SIGUSR2)

        before = signal.signal(signal.SIGUSR1, ask), signal.signal(signal.SIGUSR2, close)
        closing: list[bool] = []
        try:
            with in_thread(send_signals) as outcome:
                assert server.receive() == b"sound"
                closing.append(True)
                with pytest.raises(anyio.ClosedResourceError):
                    server.receive()
            assert outcome == [None]
        finally:
            signal.signal(signal.SIGUSR1, before[0])
            signal.signal(signal.SIGUSR2, before[1])
    assert "signal's handler" in str(told[0])


@each_transport
def test_a_forked_child_finds_it_closed(tmp_path: Path, transport: str) -> None:
    """Although another thread of the parent is in the middle of a call."""
    with l5.blocking.serve(lambda request: request, url_of(tmp_path, transport)) as server:
        with l5.blocking.connect(server.urls[0]) as client:
            with in_thread(client.receive) as outcome:
                until(lambda: client._session.receiver)
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        client.request(b"x")
                    except anyio.ClosedResourceError as error:
                        code = 0 if "connect again after fork" in str(error) else 2
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                assert client.request(b"mine") == b"mine"
                client.close()
            assert isinstance(outcome[0], anyio.ClosedResourceError)


@each_transport
def test_timeouts_of_every_call(tmp_path: Path, transport: str) -> None:
    with pair(tmp_path, transport) as (client, server):
        for timeout in (0.0, 0.01, -1.0):
            for call in (
                lambda: server.receive(timeout=timeout),  # noqa: B023 - called at once
                lambda: client.request(b"x", timeout=timeout),  # noqa: B023
                lambda: server.lease(timeout=timeout).__enter__(),  # noqa: B023
                lambda: next(client.request_stream(b"x", timeout=timeout).__enter__()),  # noqa: B023
            ):
                with pytest.raises(TimeoutError) as caught:
                    call()
                assert not isinstance(caught.value, l5.DeadlineExceeded)
        with pytest.raises(l5.DeadlineExceeded):
            client.request(b"x", deadline=0.01, timeout=60.0)
        with pytest.raises(TimeoutError) as caught:
            client.request(b"x", deadline=60.0, timeout=0.01)
        assert not isinstance(caught.value, l5.DeadlineExceeded)
        client.send(b"sound", timeout=float("inf"))
        assert server.receive(timeout=0.0 if transport == "shm" else 60.0) == b"sound"
        with pytest.raises(TimeoutError):
            server.receive(timeout=0.0)


@each_transport
def test_a_file(tmp_path: Path, transport: str) -> None:
    with pair(tmp_path, transport) as (client, server), in_thread(_upper, server) as outcome:
        raw = client.as_file()
        with io.TextIOWrapper(io.BufferedRWPair(raw, raw)) as file:
            for line in ("one\n", "two\n", "x" * 100_000 + "\n"):
                file.write(line)
                file.flush()
                assert file.readline() == line.upper()
        assert client.closed
        with pytest.raises(ValueError, match="closed"):
            raw.write(b"x")
    assert outcome == [3]


def _upper(end: l5.blocking.Connection) -> int:
    raw = end.as_file()
    count = 0
    for line in io.BufferedReader(raw):
        raw.write(line.upper())
        count += 1
    return count


@pytest.mark.anyio
async def test_inside_a_running_event_loop(tmp_path: Path) -> None:
    """As in a notebook: it blocks the loop, but it works."""
    with l5.blocking.serve(lambda request: request, url_of(tmp_path, "shm")) as server:
        with l5.blocking.connect(server.urls[0]) as client:
            assert client.request(b"x") == b"x"
            assert client.upgrade_report.transport == "shm"


def test_what_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(l5.ConnectError, match="is the server running"):
        l5.blocking.connect(f"l5+unix://{tmp_path}/nobody")
    with pytest.raises(l5.AddressError):
        l5.blocking.connect("http://localhost")
    with pytest.raises(OSError, match="does not exist"):
        l5.blocking.listen(f"l5+unix://{tmp_path}/no/such/folder")
    with l5.blocking.listen(url_of(tmp_path, "unix")) as listener:
        with pytest.raises(TimeoutError):
            listener.accept(timeout=0.01)
    with pytest.raises(anyio.ClosedResourceError):
        listener.accept()


# ---- other processes ---------------------------------------------------------------------------


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, text=True
    )


@each_transport
def test_ctrl_c_in_a_wait_leaves_it_sound(tmp_path: Path, transport: str) -> None:
    code = """
    import sys, l5.blocking
    with l5.blocking.connect(sys.argv[1]) as conn:
        for call in (conn.receive, lambda: conn.request(b"wait"), lambda: conn.send(bytes(10))):
            try:
                print("ready", flush=True)
                call()
            except KeyboardInterrupt:
                print(conn.request(b"still there").decode(), flush=True)
    """
    gate = threading.Event()

    def handle(request: bytes) -> bytes:
        if request == b"wait":
            gate.wait(PATIENCE_S)
        return request

    with l5.blocking.serve(handle, url_of(tmp_path, transport), threads=2) as server:
        with start(code, server.urls[0]) as child:
            assert child.stdout is not None
            for _ in range(2):
                assert child.stdout.readline() == "ready\n"
                sleep(0.1)
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "still there\n"
            assert child.stdout.readline() == "ready\n"
            gate.set()
            assert child.wait(PATIENCE_S) == 0, child.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_for_ever(tmp_path: Path, number: signal.Signals) -> None:
    """The first signal lets the running request finish, and the process ends without a trace."""
    code = """
    import sys, time, l5.blocking
    def handle(request):
        print("begun", flush=True)
        time.sleep(0.2)
        return request
    with l5.blocking.serve(handle, sys.argv[1]) as server:
        print("up", flush=True)
        server.serve_forever()
    print("down")
    """
    with start(code, url_of(tmp_path, "shm")) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        with l5.blocking.connect(url_of(tmp_path, "shm")) as client:
            with in_thread(client.request, b"x") as answer:
                assert child.stdout.readline() == "begun\n"
                child.send_signal(number)
            assert answer == [b"x"]
        assert child.wait(PATIENCE_S) == 0
        assert child.stdout.read() == "down\n"


@pytest.mark.parametrize(
    "end",
    [
        "c = l5.blocking.connect(url)\nthreading.Thread(target=c.receive, daemon=True).start()",
        "conn = l5.blocking.connect(url); conn.request(b'x')\nsys.exit(0)",
        "conn = l5.blocking.connect(url); box = [conn]; box.append(box)",
        "server = l5.blocking.serve(len, url + '2').__enter__()",
        "listener = l5.blocking.listen(url + '2')",
    ],
)
def test_the_interpreter_ends_with_all_open(tmp_path: Path, end: str) -> None:
    code = f"import sys, threading, l5.blocking, time\nurl = sys.argv[1]\n{end}\ntime.sleep(0.05)"
    with l5.blocking.serve(lambda request: request, url_of(tmp_path, "shm")) as server:
        with start(code, f"l5+unix://{tmp_path}/s") as child:
            assert child.stdout is not None
            assert child.wait(PATIENCE_S) == 0, child.stdout.read()
        with l5.blocking.connect(server.urls[0]) as client:
            assert client.request(b"x") == b"x"


def test_an_unclosed_connection_is_told_of(tmp_path: Path) -> None:
    with l5.blocking.serve(lambda request: request, url_of(tmp_path, "shm")) as server:
        with pytest.warns(ResourceWarning, match=r"unclosed connection <l5\.blocking\.Connection"):
            l5.blocking.connect(server.urls[0])
