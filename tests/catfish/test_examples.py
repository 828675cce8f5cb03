"""The examples of servers and clients, run as their READMEs say."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.checkout


def run(program: str, *arguments: str, status: int = 0) -> str:
    """What a program prints; with another status than 0, what it says on its error output."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


@contextmanager
def serving(program: str, *arguments: str) -> Iterator[str]:
    """The line that a server prints when it is ready; it must end well when told to."""
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def promised(example: str) -> list[str]:
    """The lines of the README's console blocks that are no commands."""
    text = (EXAMPLES / example / "README.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line for line in "".join(blocks).splitlines() if not line.startswith("$ ")]


def test_echo(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/echo.sock"
    with serving("echo/server.py", url, "l5://127.0.0.1:0") as line:
        assert line == f"listening on {url}\n"
        lines = run("echo/client.py", url).splitlines()
    assert lines[0] == "shm, upgraded from unix"
    assert lines[1:] == promised("echo")[-2:]


def test_selection() -> None:
    def without_ports(lines: list[str]) -> list[str]:
        return [re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", line) for line in lines]

    lines = without_ports(run("selection/choose.py").splitlines())
    wanted = without_ports(promised("selection"))
    assert lines[:-1] == wanted[:-1]
    begin, end = (part.strip() for part in wanted[-1].rsplit("...", 1))
    assert lines[-1].strip().startswith(begin) and lines[-1].endswith(end)


def test_keyvalue(tmp_path: Path) -> None:
    program, url = "keyvalue/keyvalue.py", f"l5+unix://{tmp_path}/kv.sock"
    with serving(program, "serve", url) as line:
        assert line == f"listening on {url}\n"
        assert run(program, "put", url, "colour", "blue") == ""
        assert run(program, "put", url, "column", "5") == ""
        assert run(program, "put", url, "other", "") == ""
        assert run(program, "get", url, "colour") == "blue\n"
        assert run(program, "scan", url, "col") == "colour = blue\ncolumn = 5\n"
        assert run(program, "delete", url, "colour") == ""
        for command in ("get", "delete"):
            said = run(program, command, url, "colour", status=1)
            assert said == "keyvalue: no such key: 'colour'\n"
        assert "put URL KEY VALUE" in run(program, "put", url, status=1)
    assert "there is no such socket" in run(program, "get", url, "x", status=1)
    assert "put URL KEY VALUE" in run(program, status=1)


@pytest.mark.anyio
async def test_keyvalue_swaps_and_refuses_what_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import l5

    monkeypatch.syspath_prepend(EXAMPLES / "keyvalue")
    from keyvalue import Client, Store

    url = f"l5+unix://{tmp_path}/kv.sock"
    async with l5.serve(Store(), url), await l5.connect(url) as connection:
        client = Client(connection)
        assert await client.swap("n", None, b"1")
        assert not await client.swap("n", None, b"2")
        assert await client.swap("n", b"1", b"2")
        assert await client.scan("", limit=1) == [("n", b"2")]
        with pytest.raises(l5.RequestFailed, match=r"DecodeError|ValidationError"):
            await connection.request(b"\x93junk")
        assert await client.get("n") == b"2"


def test_spatial(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/cities.sock"
    with serving("spatial/server.py", url) as line:
        assert line == f"40 cities on {url}\n"
        assert run("spatial/client.py", url).splitlines() == promised("spatial")[1:]
        assert run("spatial/client.py", f"{url}?transports=unix").startswith("unix, not upgraded")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else gets: only a server, which reuses addresses, can join the holder."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_prefork_web(tmp_path: Path, port: int) -> None:
    """Two workers, told apart by their process ids, search the one tree."""
    url = f"l5+unix://{tmp_path}/tree.sock"
    commands = [
        ["catfish_app", "serve", url, "--load", "demo", "--share"],
        ["uvicorn", "app:app", "--app-dir", str(EXAMPLES / "prefork_web"), "--workers", "2",
         "--port", str(port), "--log-level", "warning"],
    ]  # fmt: skip
    started: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=os.environ | {"TREE_URL": url, "TREE_MODE": "client", "PYTHONPATH": str(ROOT)},
            )
            started.append(process)
            if command[0] == "catfish_app":
                assert process.stdout is not None
                while not process.stdout.readline().startswith("listening"):
                    assert process.poll() is None
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < 2:
            assert [process.poll() for process in started] == [None, None]
            for answer in ask_at_once(port, "/within?box=24.9,37.0,25.4,37.3", 8):
                answers[answer["worker"]] = answer
        assert {answer["count"] for answer in answers.values()} == {63}
        [refused] = ask_at_once(port, "/within?box=3,0,1,x", 1)
        assert "could not convert" in refused["error"]
    finally:
        for process in reversed(started):
            process.terminate()
            process.communicate(timeout=240)


def ask_at_once(port: int, path: str, count: int) -> list[Any]:
    """The answers on so many connections that are open together; none while nobody listens."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=240) for _ in range(count)]
    try:
        for connection in connections:
            connection.request("GET", path)
        return [json.load(connection.getresponse()) for connection in connections]
    except ConnectionError:
        return []
    finally:
        for connection in connections:
            connection.close()
