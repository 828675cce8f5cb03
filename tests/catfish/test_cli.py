"""The command ``catfish``, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from catfish_app import RTreeClient
from tests._patience import PATIENTLY
from tests.catfish._support import boxes, meeting

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("L5_")} | {
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
Start = Callable[..., tuple[subprocess.Popen[str], list[str]]]
UNIT = "0,0,1,1"


def catfish(*arguments: str, status: int = 0, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, *PATIENTLY, "catfish_app", *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | environment,
        timeout=240,
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def asked(*arguments: str) -> Any:
    """What a command prints with --json."""
    return json.loads(catfish(*arguments, "--json").stdout)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start ``catfish serve --json``; give the process and the URLs that it listens on."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, *PATIENTLY, "catfish_app", "serve", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | environment,
        )
        started.append(process)
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"the server did not start: {process.stderr.read()}")
        facts = json.loads(line)
        assert facts["event"] == "listening"
        return process, facts["urls"]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_help_lists_the_commands() -> None:
    text = catfish("--help").stdout
    for command in ("serve", "load", "search", "nearest", "count", "stats", "bench", "top"):
        assert command in text


def test_serve_load_and_ask(start: Start, tmp_path: Path) -> None:
    rects = boxes(500)
    np.save(tmp_path / "boxes.npy", rects)
    process, [unix, tcp] = start(f"l5+unix://{tmp_path}/tree.sock", "l5://127.0.0.1:0")
    assert not tcp.endswith(":0")

    loaded = asked("load", unix, str(tmp_path / "boxes.npy"))
    assert loaded == {"loaded": 500, "packed": True, "entries": 500}
    box = "0.2,0.2,0.4,0.5"
    wanted = meeting(rects, (0.2, 0.2, 0.4, 0.5))
    for url in (unix, tcp, f"{unix}?transports=unix"):
        assert asked("search", url, "--bbox", box) == {"count": len(wanted), "ids": wanted}
    assert asked("count", tcp, "--bbox", box) == {"count": len(wanted)}
    [first, second] = asked("nearest", unix, "--to", "0.5,0.5", "-k", "2")
    assert 0 <= first["distance"] <= second["distance"]

    stats = asked("stats", tcp)
    assert stats["tree"]["entries"] == 500 and stats["workers"] == 1
    assert stats["connection"]["transport"] == "shm"
    assert stats["requests"]["search"] == 3 and stats["requests"]["count"] == 1
    assert stats["bounds"] == [*rects.min(axis=0)[:2], *rects.max(axis=0)[2:]]

    again = asked("load", unix, str(tmp_path / "boxes.npy"))
    assert again == {"loaded": 500, "packed": False, "entries": 1000}
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    [stopping, ended] = map(json.loads, output.splitlines())
    assert stopping == {"event": "stopping", "signal": "SIGTERM"}
    assert ended["event"] == "ended" and ended["requests"] > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["boxes.npy"]


def test_what_people_read(start: Start, tmp_path: Path) -> None:
    np.savetxt(tmp_path / "boxes.csv", boxes(100), delimiter=",")
    _, [url] = start(f"l5+unix://{tmp_path}/tree.sock", "--load", str(tmp_path / "boxes.csv"))
    lines = catfish("search", url, "--bbox", UNIT, "--limit", "3").stdout.splitlines()
    assert lines == ["100 found", "0", "1", "2", "... 97 more (--limit 0 prints all)"]
    assert len(catfish("search", url, "--bbox", UNIT, "--limit", "0").stdout.splitlines()) == 101
    assert catfish("count", url, "--bbox", UNIT).stdout == "100\n"
    assert catfish("nearest", url, "--to", "-1,0.5").stdout.count("\n") == 1
    text = catfish("stats", url).stdout
    assert "entries" in text and "100 search" not in text and "2 search" in text
    text = catfish("load", url, str(tmp_path / "boxes.csv")).stdout
    assert text == "100 rectangles inserted one by one; the tree has 200\n"


def test_serve_for_people(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, *PATIENTLY, "catfish_app", "serve"),
            *(f"l5+unix://{tmp_path}/tree.sock", "--workers", "2", "--mode", "event"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (0, "")
    assert lines == [
        "0 rectangles, served by 2 C worker(s)\n",
        f"listening on l5+unix://{tmp_path}/tree.sock\n",
    ]
    assert output == "SIGINT: finishing what runs\n0 requests answered\n"


@pytest.mark.parametrize("python", [False, True])
def test_bench(start: Start, tmp_path: Path, python: bool) -> None:
    np.save(tmp_path / "boxes.npy", boxes(5000))
    arguments = ["--python"] if python else ["--mode", "poll"]
    _, [url] = start(
        f"l5+unix://{tmp_path}/tree.sock", "--load", str(tmp_path / "boxes.npy"), *arguments
    )
    facts = asked("bench", url, "--seconds", "0.1")
    assert facts["transport"] == "shm" and facts["searches"] >= 64
    assert 0 < facts["p50_us"] <= facts["p99_us"] <= facts["max_us"]
    assert facts["searches_per_s"] == pytest.approx(facts["searches"] / facts["seconds"])
    text = catfish("bench", f"{url}?transports=unix", "--seconds", "0.05", "--edge", "0.1").stdout
    assert text.startswith("unix, not upgraded") and "searches/s" in text


def test_top(start: Start, tmp_path: Path) -> None:
    np.save(tmp_path / "boxes.npy", boxes(5000))
    process, [url] = start(f"l5+unix://{tmp_path}/tree.sock", "--load", str(tmp_path / "boxes.npy"))
    facts = asked("top", url, "--once", "--interval", "0.1")
    assert facts["entries"] == 5000 and facts["rate"] > 0 and facts["workers"] == 1
    assert sum(facts["paths"].values()) == 16 and 0 < facts["p50_us"] <= facts["max_us"]
    text = catfish("top", url, "--once", "--interval", "0.1", "--probes", "0").stdout
    for word in (
        "5,000",
        "239, 100% full",
        "requests",
        "own search p50",
        "no searches",
        "shm, upgraded",
    ):
        assert word in text, text
    watching = subprocess.Popen(
        [sys.executable, *PATIENTLY, "catfish_app", "top", url, "--json", "--interval", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert watching.stdout is not None
    samples = [json.loads(watching.stdout.readline()) for _ in range(3)]
    assert samples[0]["at_s"] < samples[1]["at_s"] < samples[2]["at_s"]
    process.terminate()  # and what watches it says so
    _, errors = watching.communicate(timeout=240)
    assert watching.returncode == 1 and errors.startswith("catfish: ") and errors.count("\n") == 1


def test_what_goes_wrong_is_a_sentence(start: Start, tmp_path: Path) -> None:
    _, [url] = start(f"l5+unix://{tmp_path}/tree.sock", "--capacity", "10")
    (tmp_path / "bad.csv").write_text("0,0,1,1\n0,5,1,1\n")
    np.save(tmp_path / "many.npy", boxes(10_000))
    cases = [
        (("search", url, "--bbox", "1,2,3"), 2, "numbers with commas between"),
        (("search", url, "--bbox", "3,0,1,1"), 1, "not a valid query: xmin 3 is greater"),
        (("load", url, "no.csv"), 1, "there is no such file"),
        (("load", url, str(tmp_path / "bad.csv")), 1, "row 1: not a valid rectangle: ymin 5"),
        (("load", url, str(tmp_path / "many.npy")), 1, "10000 rows do not fit"),
        (("bench", url), 1, "the tree is empty"),
        (("stats", f"l5+unix://{tmp_path}/none.sock"), 1, "cannot connect"),
        (("stats", "foo://x"), 2, "unknown scheme"),
        (("serve", "l5://0.0.0.0:0"), 2, "insecure"),
        (("serve", url), 1, "tree.sock"),
        (("serve", f"l5+unix://{tmp_path}/b.sock", "--load", "x.txt"), 1, "the name tells"),
    ]
    with ThreadPoolExecutor(4) as pool:
        all_done = list(pool.map(lambda case: catfish(*case[0], status=case[1]), cases))
    for (arguments, _, message), done in zip(cases, all_done, strict=True):
        assert message in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stderr.startswith("catfish: ") or "load" in arguments, done.stderr


def test_the_token_comes_from_the_environment(start: Start) -> None:
    _, [url] = start("l5://127.0.0.1:0", L5_TOKEN="sesame")
    assert catfish("count", url, "--bbox", UNIT, L5_TOKEN="sesame").stdout == "0\n"
    done = catfish("count", url, "--bbox", UNIT, status=1)
    assert "sesame" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", ["shm", "unix"])
def test_a_signal_lets_running_requests_finish(
    number: signal.Signals, way: str, start: Start, tmp_path: Path
) -> None:
    np.save(tmp_path / "boxes.npy", boxes(200_000))
    process, [url] = start(f"l5+unix://{tmp_path}/tree.sock", "--load", str(tmp_path / "boxes.npy"))

    async def main() -> int:
        suffix = "?transports=unix" if way == "unix" else ""
        async with await RTreeClient.connect(url + suffix) as tree:
            count = 0
            async with tree.search_iter((-1.0, -1.0, 2.0, 2.0)) as pieces:
                async for piece in pieces:
                    if not count:
                        process.send_signal(number)
                    count += len(piece)
            return count

    assert anyio.run(main) == 200_000
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert [json.loads(line)["event"] for line in output.splitlines()] == ["stopping", "ended"]


def test_a_port_that_is_none(tmp_path: Path) -> None:
    for option in ("--http", "--metrics"):
        done = catfish("serve", f"l5+unix://{tmp_path}/s", option, "99999", status=2)
        assert done.stderr.startswith("catfish: '99999': wanted is PORT or HOST:PORT")


def test_an_extra_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    done = catfish("--help", status=1, PYTHONPATH=str(tmp_path))
    assert done.stderr == (
        "The command catfish needs typer, which is not installed. "
        "Install the extras with: pip install 'l5net[cli,catfish]'\n"
    )


def test_without_numpy(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['numpy'] = None")
    done = catfish("--help", status=1, PYTHONPATH=str(tmp_path))
    assert done.stderr == (
        "The command catfish needs numpy, which is not installed. "
        "Install the extras with: pip install 'l5net[cli,catfish]'\n"
    )
    program = "import sys; sys.modules['numpy'] = None; from catfish_app import RTree"
    plain = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert plain.stderr.splitlines()[-1] == (
        "ImportError: catfish_app needs numpy, which is not installed. "
        "Install the extra with: pip install 'l5net[catfish]'"
    )
