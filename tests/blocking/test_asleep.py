"""A thread asleep for its answer, or a message: whatever else comes first, or ends its sleep."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import l5.blocking
from l5 import native
from l5._frames import Kind, pack_error
from l5.blocking import _asleep
from tests.blocking._ends import PATIENCE_S, in_thread, pair, until, url_of, wrap_sleeps

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)
Connection = l5.blocking.Connection


def lies(end: Connection) -> bool:
    """Tell whether a thread sleeps there: it holds the lock until it has armed."""
    with end._lock:
        driver = end._hub._driver
        return driver is not None and driver.asleep_in is not None


def lie_flat(end: Connection) -> bool:
    """... and does so in C: who waits for an answer in the engine is the same object."""
    return lies(end) and end._hub.flat != 0


@contextmanager
def asleep(call: Callable[[], object], end: Connection) -> Generator[list[Any]]:
    """Run `call` beside the block, which begins once it sleeps the short way."""
    with in_thread(call) as outcome:
        until(lambda: outcome or lie_flat(end))
        assert not outcome
        yield outcome


class Peer:
    """The other end, which says frame by frame what a test tells it to."""

    def __init__(self, end: Connection) -> None:
        self.end = end
        self.ring: Any = end._ring

    def take(self) -> tuple[int, int, int, bytes]:
        """The next frame; waits for it."""
        got: list[Any] = []
        until(lambda: self._look(got))
        return got[0]

    def _look(self, got: list[Any]) -> bool:
        frame = self.ring.try_receive()
        if frame is not None:
            got.append(frame)
        return frame is not None

    def asked(self) -> tuple[int, bytes]:
        kind, _, id, payload = self.take()
        assert kind == Kind.REQUEST
        return id, payload

    def say(self, kind: Kind, id: int, payload: bytes = b"") -> None:
        assert self.ring.try_send(int(kind), 0, id, payload)

    def ring_bell(self) -> None:
        """Ring for nothing."""
        with socket.socket(fileno=os.dup(self.end._session.fds()[0])) as bell:
            bell.send(b"x")


@contextmanager
def client_and_peer(directory: Path) -> Generator[tuple[Connection, Peer]]:
    with pair(directory, "shm", spin_us=0) as (client, server):
        yield client, Peer(server)


def test_the_usual_sleep_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    with client_and_peer(tmp_path) as (client, peer):
        monkeypatch.setattr(client._hub, "run", runs.append)
        for number in range(3):
            with asleep(lambda: client.request(b"question", timeout=PATIENCE_S), client) as got:
                id, payload = peer.asked()
                peer.say(Kind.RESPONSE, id, payload + b"%d" % number)
            assert got == [b"question%d" % number]
            with asleep(client.receive, client) as got:
                peer.say(Kind.DATA, 7, b"message")
            assert got == [b"message"]
        assert client._hub.sleeps == 6
        assert client._hub.slept_ns
        assert client.statistics().in_flight == 0
        monkeypatch.undo()
    assert not runs


def test_what_came_before_it_was_armed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look of the hot call and the arming: then arming refuses, and nobody sleeps."""
    before: list[Callable[[], object]] = []

    def hook(sleep: _asleep.Sleep) -> _asleep.Sleep:
        def run(*args: Any) -> Any:
            while before:
                before.pop(0)()
            return sleep(*args)

        return run

    wrap_sleeps(monkeypatch, hook)
    with client_and_peer(tmp_path) as (client, peer):
        before.append(lambda: peer.say(Kind.RESPONSE, peer.asked()[0], b"early"))
        assert client.request(b"x") == b"early"
        before.append(lambda: peer.say(Kind.DATA, 3, b"message"))
        assert client.receive() == b"message"
        assert client._hub.sleeps == 0

        def both() -> None:
            id, _ = peer.asked()
            peer.say(Kind.DATA, 3, b"other things first")
            peer.say(Kind.RESPONSE, id, b"behind")

        before.append(both)
        assert client.request(b"x", timeout=PATIENCE_S) == b"behind"
        assert client.receive() == b"other things first"
        assert client.statistics().in_flight == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_other_frames_first(tmp_path: Path, at_once: bool) -> None:
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(lambda: client.request(b"question"), client) as got:
            id, _ = peer.asked()
            with client._lock if at_once else threading.Lock():
                peer.say(Kind.DATA, 5, b"one")
                if not at_once:
                    until(lambda: client._session.inbox)
                    until(lambda: lies(client))
                peer.say(Kind.DATA, 6, b"two")
                peer.say(Kind.RESPONSE, id, b"answer")
        assert got == [b"answer"]
        assert [client.receive(), client.receive()] == [b"one", b"two"]


def test_an_error_answer(tmp_path: Path) -> None:
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(lambda: client.request(b"question"), client) as got:
            peer.say(Kind.ERROR, peer.asked()[0], pack_error("KeyError", "no such thing", 1000))
        assert isinstance(got[0], l5.RequestFailed)
        assert "no such thing" in str(got[0])
        assert client.statistics().in_flight == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_several_threads_get_their_own(tmp_path: Path, order: tuple[int, ...]) -> None:
    def ask(number: int) -> bytes:
        return client.request(b"%d" % number)

    with client_and_peer(tmp_path) as (client, peer), asleep(lambda: ask(0), client) as first:
        asked = [peer.asked()]
        with in_thread(ask, 1) as second:
            asked.append(peer.asked())
            with in_thread(ask, 2) as third:
                asked.append(peer.asked())
                until(lambda: len(client._hub._parked) == 2)
                for index in order:
                    id, payload = asked[index]
                    peer.say(Kind.RESPONSE, id, payload * 3)
                    until(lambda: [first, second, third][index])  # noqa: B023 - called at once
        assert [first, second, third] == [[b"000"], [b"111"], [b"222"]]
        assert not client._hub._driver and not client._hub._parked and not client._hub._callers


@pytest.mark.parametrize("answered", [True, False])
def test_the_next_one_takes_over(tmp_path: Path, answered: bool) -> None:
    """Also where the answer to the one that is parked came before the driver left."""
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(lambda: client.request(b"first", timeout=0.3), client) as first:
            (id, _), second_id = peer.asked(), 0
            with in_thread(client.request, b"second") as second:
                second_id, _ = peer.asked()
                until(lambda: client._hub._parked)
                if answered:
                    peer.say(Kind.RESPONSE, id, b"in time?")
                else:
                    until(lambda: first)
                    assert isinstance(first[0], TimeoutError)
                    assert peer.take() == (Kind.CANCEL, 0, id, b"")
                    until(lambda: lies(client))
                    peer.say(Kind.RESPONSE, id, b"late")
                peer.say(Kind.RESPONSE, second_id, b"mine")
            assert second == [b"mine"]
        until(lambda: not client.statistics().in_flight)
        assert answered or client.statistics().late_answers == 1


def test_another_thread_takes_the_bell(tmp_path: Path) -> None:
    """The sleeper is woken, but another one has the lock, looks, and finds the answer."""
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(lambda: client.request(b"question"), client) as got, client._lock:
            id, _ = peer.asked()
            peer.say(Kind.RESPONSE, id, b"answer")
            client._hub.run(client._hub.breathe())
            assert not client._session.requests
        assert got == [b"answer"]
        assert client.statistics().in_flight == 0
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(client.receive, client) as got, client._lock:
            peer.say(Kind.DATA, 8, b"first")
            client._hub.run(client._hub.breathe())
            peer.say(Kind.DATA, 9, b"second")
            peer.ring_bell()
        assert got == [b"first"]
        assert client.receive() == b"second"


def test_an_answer_too_many(tmp_path: Path) -> None:
    """It breaks the connection, and is not taken for the one that another thread has taken."""
    with client_and_peer(tmp_path) as (client, peer):
        with asleep(lambda: client.request(b"question"), client) as got, client._lock:
            id, _ = peer.asked()
            peer.say(Kind.RESPONSE, id, b"answer")
            client._hub.run(client._hub.breathe())
            peer.say(Kind.RESPONSE, id, b"again")
            peer.ring_bell()
        assert got == [b"answer"]
        assert client.statistics().in_flight == 0
        with pytest.raises(l5.RemoteProtocolError, match="no answer open"):
            client.request(b"next")


def test_a_bell_for_nothing(tmp_path: Path) -> None:
    with client_and_peer(tmp_path) as (client, peer):
        for call, kind in ((lambda: client.request(b"x"), Kind.RESPONSE), (client.receive, 1)):
            with asleep(call, client) as got:
                id = peer.asked()[0] if kind == Kind.RESPONSE else 3
                peer.ring_bell()
                until(lambda: got or (lies(client) and not lie_flat(client)))  # the engine goes on
                assert not got
                peer.say(Kind(kind), id, b"for something")
            assert got == [b"for something"]


# ---- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["request", "receive"])
@pytest.mark.parametrize("who", ["us", "peer"])
def test_closing_wakes_the_sleeper(tmp_path: Path, call: str, who: str) -> None:
    with client_and_peer(tmp_path) as (client, peer):

        def sleep() -> bytes:
            return client.request(b"x") if call == "request" else client.receive()

        with asleep(sleep, client) as got:
            (client if who == "us" else peer.end).close()
        expected = anyio.ClosedResourceError if who == "us" else anyio.BrokenResourceError
        if (call, who) == ("receive", "peer"):
            expected = anyio.EndOfStream
        assert isinstance(got[0], expected), got


@pytest.mark.parametrize("call", ["request", "receive"])
def test_the_peer_is_killed(tmp_path: Path, call: str) -> None:
    code = """
    import sys, time, l5.blocking
    with l5.blocking.listen(sys.argv[1], spin_us=0) as listener:
        print("up", flush=True)
        with listener.accept() as conn:
            time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), url_of(tmp_path, "shm")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "up\n"
            with l5.blocking.connect(url_of(tmp_path, "shm"), spin_us=0) as client:
                with asleep(
                    lambda: client.request(b"x") if call == "request" else client.receive(), client
                ) as got:
                    child.kill()
                assert isinstance(got[0], anyio.BrokenResourceError), got
        finally:
            child.kill()


# ---- signals -------------------------------------------------------------------------------------


class Interruption(BaseException):
    """What a signal's handler raises; it ends no test run."""


@contextmanager
def on_signal(handle: Callable[[], object]) -> Generator[None]:
    def handler(*_: object) -> None:
        handle()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    raise Interruption


def signalled(client: Connection, then: Callable[[], object] = int) -> object:
    """(In another thread than the main one) send a signal to that once it sleeps."""
    until(lambda: lie_flat(client))
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    return then()


def test_an_interrupted_request_is_cancelled(tmp_path: Path) -> None:
    with client_and_peer(tmp_path) as (client, peer), on_signal(interrupt):
        with in_thread(signalled, client):
            with pytest.raises(Interruption):
                client.request(b"question")
        id, _ = peer.asked()
        assert peer.take() == (Kind.CANCEL, 0, id, b"")
        peer.say(Kind.RESPONSE, id, b"late")
        with in_thread(client.request, b"next") as got:
            peer.say(Kind.RESPONSE, peer.asked()[0], b"answer")
        assert got == [b"answer"]
        assert client.statistics().late_answers == 1
        assert client.statistics().in_flight == 0


def test_an_interrupted_receive_takes_nothing(tmp_path: Path) -> None:
    with client_and_peer(tmp_path) as (client, peer), on_signal(interrupt):
        with in_thread(signalled, client):
            with pytest.raises(Interruption):
                client.receive()
        assert client._session.receiver is None
        with asleep(client.receive, client) as got:
            peer.say(Kind.DATA, 5, b"message")
        assert got == [b"message"]


@pytest.mark.parametrize("call", ["request", "receive"])
def test_an_interrupted_sleeper_hands_over(tmp_path: Path, call: str) -> None:
    with client_and_peer(tmp_path) as (client, peer), on_signal(interrupt):
        beside: list[list[Any]] = []

        def another() -> None:
            until(lambda: lie_flat(client))
            with in_thread(client.request, b"another's") as got:
                beside.append(got)
                until(lambda: client._hub._parked)
                signalled(client, lambda: until(lambda: not lie_flat(client) and lies(client)))
                kind, id, payload = 0, 0, b""
                while payload != b"another's":
                    kind, _, id, payload = peer.take()
                assert kind == Kind.REQUEST
                peer.say(Kind.RESPONSE, id, b"answer")

        with in_thread(another):
            with pytest.raises(Interruption):
                client.request(b"x") if call == "request" else client.receive()
        assert beside == [[b"answer"]]


def test_a_handler_finds_the_thread_busy_or_closes(tmp_path: Path) -> None:
    told: list[BaseException] = []

    def ask() -> None:
        try:
            client.request(b"by the handler")
        except anyio.BusyResourceError as error:
            told.append(error)

    with client_and_peer(tmp_path) as (client, peer):

        def answer() -> None:
            peer.say(Kind.RESPONSE, peer.asked()[0], b"answer")

        with on_signal(ask), in_thread(signalled, client, lambda: (until(lambda: told), answer())):
            assert client.request(b"question") == b"answer"
        assert "signal's handler" in str(told[0])
        with on_signal(client.close), in_thread(signalled, client):
            with pytest.raises(anyio.ClosedResourceError):
                client.receive()
