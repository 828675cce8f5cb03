"""The demo: short, but whole."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from catfish_app import _demo_run
from catfish_app._draw import _path
from catfish_app.demo import main, parse

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("L5_")}
FIGURES = ("searches", "searches_per_s", "p50_us", "p99_us", "mean_results")


def command(tmp_path: Path, *arguments: str) -> list[str]:
    module = [sys.executable, "-m", "catfish_app.demo", "--out", str(tmp_path / "out")]
    return [*module, *arguments]


def test_the_demo(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        command(tmp_path, "--seconds", "0.3"),
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path / "tmp")},
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["segments"] == 472_660
    assert [client["transport"] for client in report["clients"]] == ["shm"] * 4
    assert {client["why"] for client in report["clients"]} == {
        "upgraded from unix",
        "upgraded from tcp",
    }
    assert [client["transport"] for client in report["alone"]] == ["shm", "unix", "tcp"]
    for client in [*report["clients"], *report["alone"]]:
        assert all(client[name] > 0 for name in FIGURES)
        assert client["p50_us"] <= client["p99_us"]
        assert client["verified"] == 25
    assert report["verified"] == 7 * 25
    assert 0 < report["server"]["busy_share_searching"] <= 1
    searched = sum(client["searches"] for client in [*report["clients"], *report["alone"]])
    assert report["server"]["requests"]["search"] > searched

    picture = (tmp_path / "out" / "map.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 200_000
    assert report["map"]["hits"] > 1000 and report["map"]["nodes"] > 100
    for words in ("472,660 segments loaded over shm", "all equal", "upgraded from tcp", "no shm: "):
        assert words in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []  # the socket and its folder are gone


def test_a_signal_ends_the_demo_and_its_processes(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    demo = subprocess.Popen(
        command(tmp_path, "--seconds", "60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"},
    )
    assert demo.stdout is not None
    while "client processes" not in demo.stdout.readline():
        assert demo.poll() is None, demo.communicate()
    folders = [path.name for path in (tmp_path / "tmp").iterdir()]
    assert len(folders) == 1
    demo.send_signal(signal.SIGTERM)
    output, errors = demo.communicate(timeout=240)
    assert (demo.returncode, errors) == (128 + signal.SIGTERM, "")
    assert "SIGTERM: stopped" in output
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not processes_that_name(folders[0])


def processes_that_name(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if text.encode() in words:
            found.append(words.decode(errors="replace"))
    return found


def test_an_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "rich" else name)
    assert main(["--out", str(tmp_path)]) == 1
    assert "The demo needs rich, not installed here" in capsys.readouterr().err


def test_a_server_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = parse(["--out", str(tmp_path / "out"), "--workers", "500"])
    assert _demo_run.run_demo(options) == 1
    text = capsys.readouterr().out
    assert "the server ended with status 2" in text and "--workers" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--clients", "0"], ["--seconds", "0"], ["--seconds", "x"]])
def test_wrong_options(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_segments_are_joined_to_paths() -> None:
    lines = np.array([[0, 0, 1, 1], [1, 1, 2, 0], [5, 5, 6, 6], [-179, 0, 179, 0], [6, 6, 7, 7]])
    x, y = _path(lines.astype(float))
    gap = "gap"
    joined = [gap if np.isnan(a) else (a, b) for a, b in zip(x, y, strict=True)]
    assert joined == [(0, 0), (1, 1), (2, 0), gap, (5, 5), (6, 6), (7, 7), gap]
    assert len(_path(np.empty((0, 4)))[0]) == 0
    assert np.isnan(_path(np.random.default_rng(1).random((100, 4)))[0]).sum() == 100
