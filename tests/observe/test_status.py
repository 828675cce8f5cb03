"""l5 top and l5 bench, and the endpoint that a process answers them at."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

import l5
import l5.blocking
from l5 import native
from l5._cli import _bench, _top
from l5._latency import Histogram, bucket_of
from l5._status import Watcher
from tests._patience import PATIENTLY
from tests.native import _handlers

pytestmark = pytest.mark.anyio
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "L5_TOKEN": "", "L5_STATUS": "1"}


def run(*arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *PATIENTLY, "l5", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=ENVIRONMENT | {"L5_STATUS": "0"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, *PATIENTLY, "l5", "echo", f"l5+unix://{tmp_path}/s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        yield process, url
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)


def test_top_shows_what_happened(echo: tuple[subprocess.Popen[str], str]) -> None:
    process, url = echo

    async def ask() -> dict[str, Any]:
        async with await l5.connect(url) as conn:
            watcher = Watcher(process.pid)
            before = watcher.read()
            for _ in range(500):
                await conn.request(bytes(64))
            after = watcher.read()
            watcher.close()
        return _top.summarise(before, after)

    facts = anyio.run(ask)
    assert facts["pid"] == process.pid
    [row] = facts["connections"]
    assert row["role"] == "server" and row["transport"] == "shm"
    assert round(row["requests_per_s"] * facts["seconds"]) == 500
    assert 0 < row["p50_us"] <= row["p99_us"]
    assert 0 <= row["ring_sent_share"] <= 1 and row["ring_waiting_share"] == 0
    [server] = facts["servers"]
    assert server["statistics"]["connections"] == 1

    lines = run("top", str(process.pid), "--json", "--once", "--interval", "0.05").splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["pid"] == process.pid
    text = run("top", url, "--once", "--interval", "0.05")
    for word in (f"process {process.pid}", "spun", "slept", "p99 us", "ring in", url):
        assert word in text


async def test_servers_are_shown_while_they_run(tmp_path: Path) -> None:
    """Not until they are collected: who starts and stops many would see them all."""
    server = l5.serve(bytes.upper, f"l5+unix://{tmp_path}/s")
    async with server:
        assert server.urls in [view.urls for view in l5.snapshot().servers]
    assert server.urls not in [view.urls for view in l5.snapshot().servers]
    blocking = l5.blocking.serve(bytes.upper, f"l5+unix://{tmp_path}/b")
    with blocking:
        assert blocking.urls in [view.urls for view in l5.snapshot().servers]
    assert blocking.urls not in [view.urls for view in l5.snapshot().servers]


@pytest.mark.skipif(not native.available, reason=native.reason)
async def test_top_has_a_row_for_a_native_service(tmp_path: Path) -> None:
    service = l5.NativeService(_handlers.address(), keep_alive=_handlers.library())
    url = f"l5+shm://{tmp_path}/s"
    async with l5.serve(service, url), await l5.connect(url) as conn, await l5.connect(url):
        before = l5.snapshot().as_dict()
        for _ in range(50):
            await conn.request(b"echo")
        after = l5.snapshot().as_dict()
        facts = _top.summarise(before, json.loads(json.dumps(after)))
    [row] = [row for row in facts["connections"] if row["role"] == "service"]
    assert round(row["requests_per_s"] * facts["seconds"]) == 50
    assert row["peer"].startswith("2 connections, ") and row["number"] is None
    with io.StringIO() as text:
        Console(file=text, width=200).print(_top.screen(facts))
        assert "service  shm        2 connections, " in text.getvalue()
    with io.StringIO() as text:
        Console(file=text, width=80).print(_top.screen(facts))
        assert "p50 us  p99 us" in text.getvalue() and "…" not in text.getvalue()


def test_bench_measures_an_echo(echo: tuple[subprocess.Popen[str], str]) -> None:
    result = json.loads(run("bench", echo[1], "--seconds", "0.1", "--json"))
    assert result["transport"] == "shm"
    assert result["requests_per_s"] > 0 and result["pipelined_per_s"] > 0
    assert result["bandwidth_bytes_per_s"] > result["requests_per_s"]
    assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p99.9"]
    counted = sum(result["latency_buckets"].values())
    assert counted >= result["requests_per_s"] * 0.1 > 0  # it took as long as told, or longer
    text = run("bench", echo[1], "--seconds", "0.1")
    for word in ("one request at a time, 64 bytes", "16 requests in flight", "p99.9", "█"):
        assert word in text


def test_bars_of_a_histogram() -> None:
    histogram = Histogram()
    for ns in (1100, 1500, 5000):
        histogram.add(ns)
    rows = _bench.histogram_rows(histogram.sparse())
    assert [(begin, count, len(bar)) for begin, count, bar in rows] == [
        (1.024, 2, 40),
        (2.048, 0, 0),
        (4.096, 1, 20),
    ]
    assert bucket_of(1024) % 8 == 0


def test_a_process_that_was_not_asked_to_does_not_answer() -> None:
    said = run("top", str(os.getpid()), "--once", status=1)
    assert f"process {os.getpid()} does not answer" in said and "L5_STATUS=1" in said
    assert (
        run("top", str(2**22 + 1), "--once", status=1) == f"l5: there is no process {2**22 + 1}\n"
    )


async def test_latencies_are_measured_while_somebody_watches_only() -> None:
    with l5.open_status() as endpoint:
        async with l5.serve(bytes.upper, "l5://127.0.0.1:0") as server:
            async with await l5.connect(server.urls[0]) as conn:
                assert conn._session.watch is None
                with pytest.raises(OSError, match="status address"):
                    l5._status.StatusEndpoint()
                first = await anyio.to_thread.run_sync(Watcher, os.getpid())
                await anyio.to_thread.run_sync(first.read)
                assert conn._session.watch is not None
                async with await l5.connect(server.urls[0]) as later:
                    assert later._session.watch is not None
                first.close()
                with anyio.fail_after(60):
                    while conn._session.watch is not None:
                        await anyio.sleep(0.001)
                await conn.request(b"x")
                assert l5.snapshot().connections[-1].latency_buckets == {}
                second = await anyio.to_thread.run_sync(Watcher, os.getpid())
                await anyio.to_thread.run_sync(second.read)
                endpoint.close()
                with pytest.raises(EOFError):
                    await anyio.to_thread.run_sync(second.read)
                second.close()


async def test_another_user_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l5._status, "peer_of", lambda sock: (os.getpid(), 12345))
    with l5.open_status():
        with pytest.raises(OSError, match="of user 12345 answers"):
            await anyio.to_thread.run_sync(Watcher, os.getpid())
        monkeypatch.setattr(l5._status.os, "geteuid", lambda: 12345, raising=True)
        watcher = await anyio.to_thread.run_sync(Watcher, os.getpid())
        await anyio.to_thread.run_sync(watcher.read)
        watcher.close()


async def test_totals_outlive_connections() -> None:
    def totals() -> dict[tuple[str, str], l5._live.Totals]:
        return {(t.role, t.transport): t for t in l5.snapshot().totals}

    before = totals().get(("client", "tcp"), l5._live.Totals("client", "tcp"))
    async with l5.serve(bytes.upper, "l5+tcp://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as conn:
            for _ in range(7):
                await conn.request(b"x")
    after = totals()["client", "tcp"]
    assert after.connections == before.connections + 1
    assert after.requests_sent == before.requests_sent + 7
    assert json.loads(json.dumps(l5.snapshot().as_dict()))["pid"] == os.getpid()


async def talk(connection: l5.Connection) -> None:
    async with connection:
        async for message in connection:
            await connection.send(message)


def talk_in_thread(connection: l5.blocking.Connection) -> None:
    with connection:
        for message in connection:
            connection.send(message)


async def check_roles(url: str) -> None:
    before = {each.number for each in l5.snapshot().connections}
    async with await l5.connect(url) as connection:
        with anyio.fail_after(60):
            await connection.send(b"x")
            assert await connection.receive() == b"x"
        now = [each for each in l5.snapshot().connections if each.number not in before]
        assert sorted(each.role for each in now) == ["client", "server"]


@pytest.mark.parametrize("transport", ["shm", "unix"])
async def test_ends_of_a_conversation_have_roles(transport: str, tmp_path: Path) -> None:
    if transport == "shm" and not native.available:
        pytest.skip(native.reason)
    url = f"l5+unix://{tmp_path}/s?transports={transport}"
    async with l5.serve(talk, url, per="connection"):
        await check_roles(url)
    async with await l5.listen(url) as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, talk)
        await check_roles(url)
        group.cancel_scope.cancel()
    with l5.blocking.serve(talk_in_thread, url, per="connection"):
        await check_roles(url)
    with l5.blocking.listen(url) as others:
        async with anyio.create_task_group() as group:

            async def accept() -> None:
                found = await anyio.to_thread.run_sync(lambda: others.accept(timeout=60))
                await anyio.to_thread.run_sync(talk_in_thread, found)

            group.start_soon(accept)
            await check_roles(url)
