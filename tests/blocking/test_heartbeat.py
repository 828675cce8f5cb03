"""Heartbeats of servers in threads: that they come, and what they say."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

import l5.blocking
from tests.blocking._ends import PATIENCE_S, TRANSPORTS, in_thread, until, url_of

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
THREADS = pytest.mark.parametrize("threads", [1, 2])


def work(request: bytes) -> bytes:
    if request == b"work":
        sleep(0.02)
    return request


@THREADS
@each_transport
def test_a_busy_server_says_so_and_an_idle_one_too(
    tmp_path: Path, transport: str, threads: int
) -> None:
    """A busy machine may give single shares that are neither: one that is has to come."""
    url = url_of(tmp_path, transport)
    with (
        l5.blocking.serve(work, url, threads=threads) as server,
        l5.blocking.connect(server.urls[0]) as client,
    ):
        heartbeat = client.heartbeat
        ends = monotonic() + PATIENCE_S

        def until_told(what: bytes, pause_s: float, busy: bool) -> None:
            while monotonic() < ends:
                before = heartbeat.sequence
                with ExitStack() as others:
                    for _ in range(threads - 1):
                        others.enter_context(in_thread(client.request, what))
                    client.request(what)
                sleep(pause_s)
                told = heartbeat.sequence != before
                if told and (heartbeat.busy_share > 0.5) == busy:
                    return
            raise AssertionError(f"not told in time, the last was {heartbeat.busy_share}")

        until_told(b"work", 0.0, True)
        until_told(b"rest", 0.03, False)
        assert heartbeat.sequence >= 2
        assert 0.0 < heartbeat.heard_at <= monotonic()


@each_transport
def test_one_of_two_threads_at_work_is_half(tmp_path: Path, transport: str) -> None:
    """However long its handler takes: nothing of the other one's sleep is told."""
    shares: list[float] = []
    with (
        l5.blocking.serve(work, url_of(tmp_path, transport), threads=2) as server,
        l5.blocking.connect(server.urls[0]) as client,
    ):
        ends = monotonic() + PATIENCE_S
        while len(shares) < 5 or not any(0.2 < share < 0.6 for share in shares):
            assert monotonic() < ends, shares
            before = client.heartbeat.sequence
            client.request(b"work")
            if client.heartbeat.sequence != before:
                shares.append(client.heartbeat.busy_share)
    assert sorted(shares)[len(shares) // 2] <= 0.6, shares


@each_transport
def test_a_server_per_connection_tells_as_well(tmp_path: Path, transport: str) -> None:
    def handle(connection: l5.blocking.Connection) -> None:
        while True:
            connection.send(connection.receive())

    with (
        l5.blocking.serve(handle, url_of(tmp_path, transport), per="connection") as server,
        l5.blocking.connect(server.urls[0]) as client,
    ):

        def told() -> bool:
            client.send(b"x")
            assert client.receive() == b"x"
            return client.heartbeat.sequence > 2

        until(told)
        assert 0.0 <= client.heartbeat.busy_share <= 1.0


@each_transport
def test_nobody_is_told_who_does_not_want_to_know(tmp_path: Path, transport: str) -> None:
    with (
        l5.blocking.serve(work, url_of(tmp_path, transport)) as server,
        l5.blocking.connect(server.urls[0], heartbeat_ms=0) as client,
    ):
        for _ in range(3):
            client.request(b"work")
        assert (client.heartbeat.sequence, client.heartbeat.interval_s) == (0, 0.0)
