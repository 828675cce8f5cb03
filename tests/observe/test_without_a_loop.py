"""What l5 top, l5 dump and taps see of `l5.blocking`, mostly in processes of their own."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import l5
import l5.blocking
from l5._cli import _top
from l5._status import Watcher
from tests._patience import PATIENTLY

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "L5_TOKEN": "", "L5_STATUS": "1"}
SERVER = """
import sys, l5.blocking
def answer(request):
    if request == b"boom":
        raise ValueError("no")
    return request
with l5.blocking.serve(answer, sys.argv[1], threads=int(sys.argv[2])) as server:
    print(server.urls[0], flush=True)
    sys.stdin.read()
"""
CLIENT = """
import sys, l5.blocking
with l5.blocking.connect(sys.argv[1]) as conn:
    print(conn.transport, flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            conn.request(bytes(64))
        print("done", flush=True)
"""


@contextmanager
def program(code: str, *arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a program that says a line when it is ready, and ends with its standard input."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
            process.communicate(timeout=240)
            assert process.returncode == 0
        finally:
            process.kill()


def ask(client: subprocess.Popen[str], count: int) -> None:
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(f"{count}\n")
    client.stdin.flush()
    assert client.stdout.readline() == "done\n"


def l5_command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *PATIENTLY, "l5", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=ENVIRONMENT | {"L5_STATUS": "0"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def look_once(pid: int) -> dict[str, Any]:
    watcher = Watcher(pid)
    facts: dict[str, Any] = watcher.read()
    watcher.close()
    [view] = facts["connections"]
    return view


def urls(folder: Path) -> dict[str, str]:
    return {
        "shm": f"l5+shm://{folder}/s",
        "unix": f"l5+unix://{folder}/s?transports=unix",
        "tcp": "l5+tcp://127.0.0.1:0?transports=tcp",
    }


@pytest.mark.parametrize(("transport", "threads"), [("shm", "1"), ("unix", "3"), ("tcp", "1")])
def test_top_counts_and_times_both_ends(transport: str, threads: str, tmp_path: Path) -> None:
    with (
        program(SERVER, urls(tmp_path)[transport], threads) as (server, url),
        program(CLIENT, url) as (client, said),
    ):
        assert said == transport
        watchers = [Watcher(server.pid), Watcher(client.pid)]
        before = [watcher.read() for watcher in watchers]
        ask(client, 300)
        while look_once(server.pid)["statistics"]["requests_answered"] != 300:
            time.sleep(0.01)  # the last one is counted when its answer is out already
        after = [watcher.read() for watcher in watchers]
        for watcher in watchers:
            watcher.close()
        theirs, ours = (_top.summarise(*pair) for pair in zip(before, after, strict=True))
        for facts, role in ((theirs, "server"), (ours, "client")):
            [row] = facts["connections"]
            assert (row["role"], row["transport"]) == (role, transport)
            assert round(row["requests_per_s"] * facts["seconds"]) == 300
            assert 0 < row["p50_us"] <= row["p99_us"]
            assert facts["loops"] == 0 and facts["blocking"]["loops"] == 1
        [counted] = theirs["servers"]
        assert counted["urls"] == [url] and ours["servers"] == []
        assert counted["statistics"]["requests"] == 300
        assert counted["statistics"]["connections"] == 1 == counted["statistics"]["workers"]
        # Looking is over, and so is measuring: who looks next, begins anew.
        while (view := look_once(server.pid))["latency_buckets"]:
            time.sleep(0.01)
        assert view["statistics"]["requests_answered"] == 300


def test_top_of_a_url_and_errors_count_as_answers(tmp_path: Path) -> None:
    with program(SERVER, urls(tmp_path)["unix"], "1") as (server, url):
        with l5.blocking.connect(url) as conn:
            with pytest.raises(l5.RequestFailed):
                conn.request(b"boom")
            text = l5_command("top", url, "--once", "--interval", "0.05")
            assert f"process {server.pid}" in text
            assert f"server {url}: " in text and "1 requests, 1 failed" in text
            assert "connections without a loop (" in text and "event loops" not in text
            line = json.loads(l5_command("top", str(server.pid), "--json", "--once"))
            assert line["blocking"]["loops"] >= 1


def kinds(data: bytes) -> list[tuple[int, bool, int]]:
    """Return (connection, sent, kind) of each packet."""
    found: list[tuple[int, bool, int]] = []
    while data:
        kind, length = struct.unpack_from("<II", data)
        if kind == 6:
            packet = data[28 : length - 4]
            _, sent, _, name, _, number = struct.unpack_from("<BBBBII", packet)
            found.append((number, bool(sent), packet[12 + name + 4]))
        data = data[length:]
    return found


REQUEST, RESPONSE, ERROR = 2, 3, 4


@pytest.mark.parametrize(("transport", "threads"), [("shm", "1"), ("unix", "3")])
def test_dump_records_a_running_server(transport: str, threads: str, tmp_path: Path) -> None:
    path = tmp_path / "frames.pcapng"
    with program(SERVER, urls(tmp_path)[transport], threads) as (server, url):
        with l5.blocking.connect(url, heartbeat_ms=0) as conn:
            conn.request(b"before")
            with subprocess.Popen(
                [sys.executable, "-m", "l5", "dump", "-o", str(path), str(server.pid)],
                stderr=subprocess.PIPE,
                cwd=ROOT,
            ) as dump:
                try:
                    while not (path.exists() and REQUEST in [k for _, _, k in recorded(path)]):
                        assert dump.poll() is None
                        assert conn.request(b"until it is seen") == b"until it is seen"
                    seen = len(recorded(path))
                    for _ in range(5):
                        conn.request(b"seen")
                    with pytest.raises(l5.RequestFailed):
                        conn.request(b"boom")
                finally:
                    assert server.stdin is not None
                    server.stdin.close()  # it ends, and so does the dump
                    server.stdin = None
                    dump.wait(240)
    packets = [(sent, kind) for _, sent, kind in recorded(path)]
    assert seen >= 1
    packets = packets[packets.index((False, REQUEST)) :]  # it began between a request and an answer
    requests = [kind for sent, kind in packets if not sent and kind == REQUEST]
    answers = [kind for sent, kind in packets if sent and kind in (RESPONSE, ERROR)]
    assert len(requests) == len(answers) >= 7 and answers[-1] == ERROR


def recorded(path: Path) -> list[tuple[int, bool, int]]:
    """Read what is there of a file that is being written."""
    data = path.read_bytes()
    end = 0
    while end + 8 <= len(data) and end + struct.unpack_from("<I", data, end + 4)[0] <= len(data):
        end += struct.unpack_from("<I", data, end + 4)[0]
    return kinds(data[:end])


def settle(tap: l5.Tap, frames: int) -> None:
    """Wait until so many are recorded: a thread notes a frame when it is on its way already."""
    while tap.frames < frames:
        time.sleep(0.001)
    assert tap.frames == frames


def test_a_tap_sees_each_frame_of_both_ends_and_then_none(tmp_path: Path) -> None:
    with l5.blocking.serve(bytes.upper, f"l5+shm://{tmp_path}/s", heartbeat_ms=0) as server:
        with l5.blocking.connect(server.urls[0]) as conn:
            conn.request(b"before")
            [theirs] = [s for s in l5._live.sessions() if s.server is not None]
            ours = conn._session
            assert ours.ring is not None and theirs.ring is not None
            with l5.tap(tmp_path / "f") as tap:
                assert conn.request(b"abc") == b"ABC"
                settle(tap, 4)
                with conn.reserve(3) as slot:
                    assert not slot.in_place
                    slot.view[:] = b"def"
                    assert slot.request() == b"DEF"
                settle(tap, 8)
                assert conn.request_many([b"x"] * 10) == [b"X"] * 10
                settle(tap, 48)
                with l5.blocking.connect(server.urls[0]) as later:
                    assert later.request(b"later") == b"LATER"
                while tap.frames < 52:
                    time.sleep(0.001)
                assert (ours.ring.shared, theirs.ring.shared) == (2, 2)
            calls, frames = ours.ring.calls, tap.frames
            for _ in range(10):
                assert conn.request(b"fast") == b"FAST"
            assert tap.frames == frames and ours.channel.transport == "shm"
            assert type(ours.channel) is type(theirs.channel) is not l5._tap.TappedChannel
            assert (ours.ring.shared, theirs.ring.shared) == (1, 1)
            assert theirs.ring.server is theirs.server and ours.ring.calls > calls


def test_threads_of_one_connection_are_tapped_and_let_go_while_they_ask(tmp_path: Path) -> None:
    over = threading.Event()
    errors: list[BaseException] = []

    def keep_asking(conn: l5.blocking.Connection, text: bytes) -> None:
        try:
            while not over.is_set():
                assert conn.request(text) == text.upper()
        except BaseException as error:
            errors.append(error)

    with (
        l5.blocking.serve(bytes.upper, f"l5+shm://{tmp_path}/s") as server,
        l5.blocking.connect(server.urls[0]) as conn,
    ):
        threads = [threading.Thread(target=keep_asking, args=(conn, t)) for t in (b"a", b"bb")]
        for thread in threads:
            thread.start()
        for number in range(20):
            with l5.tap(tmp_path / f"f{number}") as tap:
                while tap.frames < 20 and not errors:
                    conn.request(b"c")
            conn.request(b"d")
        over.set()
        for thread in threads:
            thread.join()
        assert not errors and conn._session.ring is not None
        assert conn._session.ring.shared == 1
        sent: Any = kinds((tmp_path / "f3").read_bytes())
        assert {kind for _, _, kind in sent} >= {REQUEST, RESPONSE}
