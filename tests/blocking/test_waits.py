"""A wait that ends early, by a timeout or by Ctrl-C, at each place where a call can wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from types import FrameType

import anyio
import pytest

import l5.blocking
from l5.testing import pattern
from tests.blocking._ends import SMALL, TRANSPORTS, Waits, in_thread, pair, until, url_of, waits

__all__ = ["waits"]

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)
HOW = pytest.mark.parametrize("how", ["timeout", "interrupt"])


class Interruption(BaseException):
    """What a signal's handler raises; like KeyboardInterrupt, but it ends no test run."""


def set_up(waits: Waits, how: str) -> type[BaseException]:
    if how == "interrupt":
        waits.error = Interruption()
        return Interruption
    return TimeoutError


def slow(request: bytes) -> bytes:
    if request[:1] == b"s":
        sleep(0.002)  # longer than anybody spins
    return request if len(request) < 20 else request[:20] + bytes(len(request) - 20)


REQUESTS: dict[str, Callable[[l5.blocking.Connection, bytes], bytes]] = {
    "short": lambda conn, name: conn.request(b"s" + name),
    "long": lambda conn, name: conn.request(b"s" + name + bytes(100_000))[: len(name) + 1],
    "deadline": lambda conn, name: conn.request(b"s" + name, deadline=60.0),
    "reserved": lambda conn, name: _reserved(conn, b"s" + name),
    "stream": lambda conn, name: _streamed(conn, b"s" + name),
}


def _reserved(conn: l5.blocking.Connection, request: bytes) -> bytes:
    with conn.reserve(len(request)) as slot:
        with slot.view as view:
            view[:] = request
        return slot.request()


def _streamed(conn: l5.blocking.Connection, request: bytes) -> bytes:
    with conn.request_stream(request + bytes(100_000)) as pieces:
        return b"".join(pieces)[: len(request)]


@HOW
@pytest.mark.parametrize("kind", REQUESTS)
def test_requests(tmp_path: Path, waits: Waits, transport: str, how: str, kind: str) -> None:
    expected = set_up(waits, how)
    ended = 0

    def handle(request: bytes) -> bytes:
        if request[:1] == b"s":
            waits.let_it_rest()
        return slow(request)

    with (
        l5.blocking.serve(handle, url_of(tmp_path, transport), **SMALL) as server,
        l5.blocking.connect(server.urls[0], **SMALL) as client,
    ):

        def ask(number: int) -> bytes:
            return REQUESTS[kind](client, b"%05d" % number)

        def check(number: int, outcome: object) -> None:
            nonlocal ended
            ended += isinstance(outcome, expected)
            assert isinstance(outcome, expected) or outcome == b"s%05d" % number
            assert client.request(b"probe%d" % number) == b"probe%d" % number

        waits.at_every_wait(ask, check)
        assert ended
        until(lambda: client.request(b"x") and not client.statistics().in_flight)


@HOW
@pytest.mark.parametrize("size", [100, 50_000])
def test_sends(tmp_path: Path, waits: Waits, transport: str, how: str, size: int) -> None:
    """A send that was given up sent nothing; one that was interrupted, all or nothing."""
    expected = set_up(waits, how)
    sent: list[int] = []
    given_up: list[int] = []
    full = threading.Event()

    def read(end: l5.blocking.Connection) -> list[int]:
        got: list[int] = []
        for message in end:
            if len(message) == size:
                got.append(int.from_bytes(message[:4], "little"))
            sleep(0.001)
            while full.is_set() and not waits.resting:
                sleep(0.001)  # or there is room before anybody waits for it
        return got

    def clog() -> None:
        for filling in (5000, 50):
            with pytest.raises(TimeoutError):
                while True:
                    client.send(bytes(filling), timeout=0.0)

    with pair(tmp_path, transport) as (client, server), in_thread(read, server) as got:

        def send(number: int) -> None:
            at, waits.at = waits.at, 0
            full.set()
            try:
                clog()
                waits.at = at
                client.send(number.to_bytes(4, "little") + bytes(size - 4))
            finally:
                full.clear()

        def check(number: int, outcome: object) -> None:
            assert outcome is None or isinstance(outcome, expected)
            (sent if outcome is None else given_up).append(number)

        waits.at_every_wait(send, check)
        client.close()
    assert given_up
    if how == "timeout":
        assert got == [sent]
    else:
        assert set(sent) <= set(got[0]) <= set(sent + given_up)
        assert got[0] == sorted(got[0])


@HOW
@pytest.mark.parametrize("kind", ["receive", "lease"])
@pytest.mark.parametrize("size", [10, 50_000])
def test_receives(
    tmp_path: Path, waits: Waits, transport: str, how: str, kind: str, size: int
) -> None:
    """No message is lost, and none comes twice."""
    expected = set_up(waits, how)
    got: list[int] = []
    count = 60
    waited = threading.Event()

    def write(end: l5.blocking.Connection) -> None:
        waited.wait()
        for number in range(count):
            end.send(number.to_bytes(4, "little") + bytes(size - 4))
            sleep(0.001)

    def receive(end: l5.blocking.Connection) -> bytes:
        if kind == "receive":
            return end.receive()
        with end.lease() as message, message.view as view:
            return bytes(view)

    with pair(tmp_path, transport) as (client, server), in_thread(write, client):
        ended = 0
        while len(got) < count:
            outcome = waits.interrupted(lambda: receive(server), at=1 + ended % 3)
            if isinstance(outcome, bytes):
                got.append(int.from_bytes(outcome[:4], "little"))
            else:
                assert isinstance(outcome, expected)
                ended += 1
                waited.set()
        assert ended
    assert got == list(range(count))


# ---- signals at any moment -----------------------------------------------------------------------

OWN_FILES = ("l5/", "contextlib.py")


class Strike:
    """Raises where a signal's handler could: as a function begins, or as a call into C returns."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.struck = ""

    def __enter__(self) -> Strike:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or self.struck:
            return
        if any(part in frame.f_code.co_filename for part in OWN_FILES):
            self.left -= 1
            if not self.left:
                self.struck = f"{event} {frame.f_code.co_name} {argument}"
                raise Interruption


# What was struck down before its first step.
unstarted = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


def broken_by_us(error: anyio.BrokenResourceError) -> None:
    assert "interrupted a call on this connection in its middle" in str(error), error


@unstarted
@pytest.mark.parametrize("kind", REQUESTS)
def test_requests_struck_anywhere(tmp_path: Path, transport: str, kind: str) -> None:
    """Every answer belongs to its request, whatever is interrupted; or the connection is broken."""
    sound = 0
    step = 1 if kind == "short" else 7
    with l5.blocking.serve(slow, url_of(tmp_path, transport), **SMALL) as server:
        client = l5.blocking.connect(server.urls[0], **SMALL)
        for at in range(1, 5000, step):
            answer = None
            strike = Strike(at)
            try:
                with strike:
                    answer = REQUESTS[kind](client, b"%05d" % at)
            except Interruption:
                pass
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                assert strike.struck, error
            assert answer is None or answer == b"s%05d" % at
            try:
                for _ in range(3):
                    assert client.request(b"probe%d" % at, timeout=60.0) == b"probe%d" % at
                sound += 1
            except anyio.BrokenResourceError as error:
                broken_by_us(error)
                client.close()
                client = l5.blocking.connect(server.urls[0], **SMALL)
            if not strike.struck:
                break
        until(lambda: client.request(b"x") and not client.statistics().in_flight)
        client.close()
    assert sound > 3


@unstarted
@pytest.mark.parametrize("waiting", [False, True])
def test_receives_struck_anywhere(tmp_path: Path, transport: str, waiting: bool) -> None:
    """In order, none twice, and none lost as long as the connection is not broken."""
    sound = 0
    for at in range(1, 2000):
        strike = Strike(at)
        with pair(tmp_path, transport) as (client, server):
            if not waiting:
                client.send(b"first")
            with in_thread(_send_late, client, waiting):
                got = None
                try:
                    with strike:
                        got = server.receive()
                except Interruption:
                    pass
                try:
                    if got is None:
                        got = server.receive(timeout=60.0)
                    assert got == b"first", strike.struck
                    assert server.receive(timeout=60.0) == b"second"
                    assert client.statistics().in_flight == 0
                    sound += 1
                except anyio.BrokenResourceError as error:
                    broken_by_us(error)
        if not strike.struck:
            break
    assert sound > 3


def _send_late(end: l5.blocking.Connection, both: bool) -> None:
    sleep(0.001)
    with suppress(anyio.BrokenResourceError):
        if both:
            end.send(b"first")
        end.send(b"second")


@unstarted
@pytest.mark.parametrize("size", [100, 50_000])
def test_sends_struck_anywhere(tmp_path: Path, transport: str, size: int) -> None:
    """Each arrives whole or not at all, and the next one after it."""
    sound = 0
    for at in range(1, 2000, 1 if size == 100 else 3):
        strike = Strike(at)
        with pair(tmp_path, transport) as (client, server), in_thread(list, server) as got:
            whole = False
            try:
                with strike:
                    client.send(pattern(size))
                whole = True
            except Interruption:
                pass
            try:
                client.send(b"next")
                sound += 1
                client.close()
            except anyio.BrokenResourceError as error:
                broken_by_us(error)
                server.close()
                continue
        assert got[0][-1] == b"next"
        assert got[0][:-1] in ([pattern(size)], [] if not whole else None)
        if not strike.struck:
            break
    assert sound > 3
