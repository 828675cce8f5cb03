"""The command l5, as a user runs it: other processes, exit statuses, what is printed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from l5 import blocking
from l5._cli import _info, _ping, _run
from l5._errors import AddressError, ConnectError, L5Error
from l5._registry import GROUP, Registry
from l5._selector import UpgradeReport
from l5.abc import Probe, Transport
from tests._patience import PATIENTLY

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "L5_TOKEN": ""}
Start = Callable[..., "tuple[subprocess.Popen[str], list[str]]"]


def l5(*arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *PATIENTLY, "l5", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=ENVIRONMENT | environment,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


# info


def test_info_as_json() -> None:
    facts = json.loads(l5("info", "--json").stdout)
    transports = {transport["name"]: transport for transport in facts["transports"]}
    assert {"tcp", "unix", "shm", "inproc"} <= set(transports)
    for transport in transports.values():
        assert transport["usable"] == (not transport["reason"])
    assert transports["inproc"]["usable"]
    assert {"l5", "l5s", "l5+unix"} <= set(facts["schemes"])
    assert facts["versions"]["l5net"] and facts["versions"]["anyio"]
    assert 1 <= facts["system"]["cpus_allowed"] <= facts["system"]["cpus"]
    rdma = facts["rdma"]
    assert rdma["usable"] == (not rdma["reason"]) == (not rdma["missing"])


def test_info_for_people() -> None:
    text = l5("info").stdout
    for word in (
        "transport",
        "tcp",
        "unix",
        "shm",
        "inproc",
        "memlock",
        "l5net",
        "l5+unix://",
        "RDMA",
    ):
        assert word in text


DETAILS = {"device": "[red]mlx5_0", "ports": 2, "headroom_bytes": None}


class Fake(Transport):
    name = "fake"

    def probe(self) -> Probe:
        return Probe(usable=True, details=DETAILS)


class Absent(Fake):
    name = "absent"

    def probe(self) -> Probe:
        return Probe(usable=False, reason="no device; load the driver")


class Bad(Fake):
    name = "bad"

    def probe(self) -> Probe:
        raise ZeroDivisionError("oops")


@pytest.fixture
def strange() -> Iterator[Registry]:
    registry = Registry(lambda: [EntryPoint("gone", "l5_no_such_module:X", GROUP)])
    with (
        registry.register_for_tests("fake", Fake),
        registry.register_for_tests("absent", Absent),
        registry.register_for_tests("bad", Bad),
    ):
        yield registry


def test_info_gives_the_precise_reason(
    strange: Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = _info.collect(strange)
    assert [(t["name"], t["usable"]) for t in facts["transports"]] == [
        ("absent", False),
        ("bad", False),
        ("fake", True),
        ("gone", False),
    ]
    absent, bad, fake, gone = facts["transports"]
    assert absent["reason"] == "no device; load the driver"
    assert bad["reason"] == "probing it raised ZeroDivisionError: oops"
    assert fake["details"] == DETAILS
    assert "No module named 'l5_no_such_module'" in gone["reason"]
    assert json.loads(json.dumps(facts)) == facts
    monkeypatch.setenv("COLUMNS", "200")
    _info.show(facts)
    shown = capsys.readouterr().out
    assert "device=[red]mlx5_0, ports=2, headroom_bytes=no limit" in shown
    assert "no device; load the driver" in shown


# Errors.


def test_without_its_extra_the_command_says_what_to_install() -> None:
    for package in ("typer", "rich"):
        code = f"import sys; sys.modules[{package!r}] = None; import l5.__main__ as m; m.main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1
        assert done.stderr.strip() == (
            f"The command l5 needs {package}, which is not installed."
            " Install the extra with: pip install 'l5net[cli]'"
        )


def test_a_missing_module_of_our_own_is_not_explained_away() -> None:
    code = "import sys; sys.modules['l5._registry'] = None; import l5.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr and "pip install" not in done.stderr


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (AddressError("bad URL 'x'"), 2, "l5: bad URL 'x'"),
        (L5Error("does not echo"), 1, "l5: does not echo"),
        (ConnectError("l5://h:1"), 1, "l5: cannot connect to l5://h:1"),
        (PermissionError(13, "Permission denied"), 1, "l5: Permission denied"),
        (FileNotFoundError(2, "No such file", "/x"), 1, "l5: /x: No such file"),
        (anyio.EndOfStream(), 1, "l5: the peer closed the connection"),
        (ExceptionGroup("g", [ExceptionGroup("h", [L5Error("deep")])]), 1, "l5: deep"),
    ],
)
def test_errors_become_a_sentence_and_a_status(
    raised: Exception, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(typer.Exit) as caught:
        _run.run(fail)
    assert caught.value.exit_code == status
    assert capsys.readouterr().err.startswith(text)


@pytest.mark.parametrize(
    "raised",
    [ZeroDivisionError("a bug"), ExceptionGroup("two", [L5Error("one"), ZeroDivisionError()])],
)
def test_a_bug_keeps_its_traceback(raised: Exception) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(type(raised)):
        _run.run(fail)


def test_run_returns_what_the_coroutine_returns() -> None:
    async def answer() -> int:
        await anyio.lowlevel.checkpoint()
        return 42

    assert _run.run(answer) == 42


@pytest.mark.parametrize(
    ("command", "url", "text"),
    [
        ("ping", "http://localhost:80", "unknown scheme 'http'; known are l5://"),
        ("ping", "l5://localhost:0", "port 0 is for listening only"),
        ("ping", "l5://user:pw@localhost", "credentials"),
        ("echo", "l5+unix://relative/path", "three slashes"),
        ("echo", "l5://127.0.0.1:0?rnig=1MiB", "unknown option 'rnig'"),
    ],
)
def test_a_bad_url(command: str, url: str, text: str) -> None:
    done = l5(command, url, status=2)
    assert done.stderr.startswith("l5: bad URL") and text in done.stderr
    assert done.stderr.count("\n") == 1


def test_nobody_listens(tmp_path: Path) -> None:
    done = l5("ping", f"l5+unix://{tmp_path}/none.sock", status=1)
    assert done.stderr.startswith("l5: cannot connect to l5+unix://")


def test_help_lists_the_commands() -> None:
    text = l5("--help").stdout
    assert all(command in text for command in ("info", "ping", "echo"))


# ping and echo


@pytest.fixture
def start_echo() -> Iterator[Start]:
    """Start ``l5 echo``; give the process and the URLs that it listens on."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], list[str]]:
        urls = [argument for argument in arguments if "://" in argument]
        process = subprocess.Popen(
            [sys.executable, *PATIENTLY, "l5", "echo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | environment,
        )
        started.append(process)
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline() for _ in urls]
        if not all(line.startswith("listening on ") for line in lines):
            pytest.fail(f"echo did not start: {lines} {process.stderr.read()}")
        return process, [line.split()[-1] for line in lines]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ping(url: str, *arguments: str, **environment: str) -> dict[str, Any]:
    return json.loads(l5("ping", url, "-n", "20", "--json", *arguments, **environment).stdout)


def test_ping_an_echo_server_on_two_addresses(start_echo: Start, tmp_path: Path) -> None:
    unix = f"l5+unix://{tmp_path}/echo.sock"
    _, urls = start_echo("l5://127.0.0.1:0", unix)
    assert urls[1] == unix and not urls[0].endswith(":0")
    for url, bootstrap in zip(urls, ("tcp", "unix"), strict=True):
        result = ping(url, "--size", "1000")
        assert result["url"] == url
        assert result["upgrade"]["bootstrap"] == bootstrap
        assert result["upgrade"]["transport"] == result["transport"]
        assert (result["requests"], result["size_bytes"]) == (20, 1000)
        assert 0 < result["min_us"] <= result["p50_us"] <= result["p99_us"] <= result["max_us"]
        assert result["requests_per_s"] > 0


def test_ping_for_people_and_without_an_upgrade(start_echo: Start, tmp_path: Path) -> None:
    _, [url] = start_echo(f"l5+unix://{tmp_path}/echo.sock")
    plain = f"{url}?transports=unix"
    assert ping(plain)["transport"] == "unix"
    text = l5("ping", plain, "-n", "3").stdout
    assert text.startswith(f"{plain}: unix, not upgraded; no shm or rdma: ")
    assert "3 requests of 64 bytes: min " in text and "p99" in text


def test_an_empty_request_is_echoed(start_echo: Start, tmp_path: Path) -> None:
    _, [url] = start_echo(f"l5+unix://{tmp_path}/echo.sock")
    assert ping(url, "--size", "0")["size_bytes"] == 0


def refuse(request: bytes) -> bytes:
    raise KeyError(f"no command of {len(request)} bytes")


@pytest.mark.parametrize("command", ["ping", "bench"])
def test_a_server_that_is_no_echo(command: str, tmp_path: Path) -> None:
    """Whether it answers something else or an error: the command says what it wants."""
    url = f"l5+unix://{tmp_path}/s"
    for handler, does in (
        (lambda request: request[1:], "does not echo"),
        (refuse, "answers KeyError: 'no command of 64 bytes'"),
    ):
        with blocking.serve(handler, url):
            assert l5(command, url, status=1).stderr.strip() == (
                f"l5: {command} {url}: its server {does};"
                " wanted is one that echoes, such as l5 echo"
            )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_echo_ends_well_when_told_to(
    number: signal.Signals, start_echo: Start, tmp_path: Path
) -> None:
    process, [url] = start_echo(f"l5+unix://{tmp_path}/echo.sock")
    ping(url)
    process.send_signal(number)
    output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (0, "")
    assert output == f"{number.name}: finishing what runs\n"
    assert list(tmp_path.iterdir()) == []


def test_the_token_comes_from_the_environment(start_echo: Start) -> None:
    _, [url] = start_echo("l5://127.0.0.1:0", L5_TOKEN="sesame")
    assert ping(url, L5_TOKEN="sesame")["requests"] == 20
    done = l5("ping", url, status=1)
    assert "unauthorised" in done.stderr and "sesame" not in done.stderr


def test_beyond_loopback_only_with_a_token_or_on_demand(start_echo: Start) -> None:
    done = l5("echo", "l5://0.0.0.0:0", status=2)
    assert "token" in done.stderr and "insecure" in done.stderr
    start_echo("l5://0.0.0.0:0", "--insecure")


# The arithmetic.


@given(st.lists(st.integers(0, 10**9), min_size=1), st.integers(1, 100))
def test_percentile(values: list[int], percent: int) -> None:
    ordered = sorted(values)
    result = _ping.percentile(ordered, percent)
    assert result in ordered
    not_above = sum(value <= result for value in values)
    below = sum(value < result for value in values)
    assert not_above * 100 >= percent * len(values) > below * 100


def test_summary() -> None:
    report = UpgradeReport("shm", "unix", {"rdma": "no device"})
    result = _ping.summary(report, 64, [3000, 1000, 2000, 4000], 20_000)
    assert (result["min_us"], result["p50_us"], result["p99_us"], result["max_us"]) == (1, 2, 4, 4)
    assert result["requests_per_s"] == 200_000
    assert json.loads(json.dumps(result)) == result
    assert _ping.describe(result | {"url": "l5+unix:///x"}) == (
        "l5+unix:///x: shm, upgraded from unix\n"
        "4 requests of 64 bytes: min 1.0 us, p50 2.0 us, p99 4.0 us, max 4.0 us; 200,000/s"
    )
