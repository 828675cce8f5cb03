"""The benchmarks: their arithmetic, their command line, and that each case of messaging runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from benchmarks import __main__ as command
from benchmarks import _report, fig6, messaging, report, watching
from benchmarks._harness import (
    KEYS,
    Metric,
    Round,
    Row,
    Watch,
    busy_ticks,
    compare,
    process_ticks,
    rounded,
    row,
    spread,
    take_turns,
)
from benchmarks.messaging_peers import ladder, loops, side_by_side
from benchmarks.messaging_peers.pair import (
    Pair,
    Spec,
    WorkerFailed,
    percentiles,
    rates,
    with_children,
)
from benchmarks.messaging_peers.surroundings import NoQuota, quota
from l5 import _live, native

RATE = Metric("rate", "round trips", "1/s")
P99 = Metric("p99_us", "p99", "us")
ROOT = Path(__file__).resolve().parents[1]


# -- arithmetic


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert spread([1.0, 2.0]) == {"min": 1.0, "median": 1.5, "max": 2.0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0123456, 0.01235), (12.3456, 12.35), (999.96, 1000.0), (1234567.8, 1234568.0), (0.0, 0.0)],
)
def test_rounded(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_nothing_over_nothing_is_no_ratio() -> None:
    assert row("c", None, RATE, "p", [(0.0, 0.0)])["ratio"]["max"] == 1.0
    assert row("c", None, RATE, "p", [(2.0, 0.0)])["ratio"]["max"] == 2e9


def test_ratios_are_taken_pair_by_pair() -> None:
    made = row("c", "M1", RATE, "p", [(100.0, 10.0), (300.0, 10.0), (200.0, 100.0)], disturbed=1)
    assert made == {
        "case": "c",
        "goal": "M1",
        "metric": "round trips",
        "unit": "1/s",
        "ours": {"min": 100.0, "median": 200.0, "max": 300.0},
        "peer": "p",
        "peer_value": {"min": 10.0, "median": 10.0, "max": 100.0},
        "ratio": {"min": 2.0, "median": 10.0, "max": 30.0},
        "n": 3,
        "disturbed": 1,
    }


def test_each_peer_and_metric_gets_a_row() -> None:
    rounds = [
        Round(({"rate": 10.0, "p99_us": 1.0}, {"rate": 5.0}, {"rate": 2.0, "p99_us": 4.0}), 0.0),
        Round(({"rate": 20.0, "p99_us": 2.0}, {"rate": 5.0}, {"rate": 4.0, "p99_us": 4.0}), 1.0),
    ]
    rows = compare("c", ("G", None), (RATE, P99), ("a", "b"), rounds)
    named = [(r["peer"], r["goal"], r["metric"], r["ratio"]["max"]) for r in rows]
    assert named == [
        ("a", "G", "round trips", 4.0),
        ("b", None, "round trips", 5.0),
        ("b", None, "p99", 0.5),
    ]
    assert {r["disturbed"] for r in rows} == {1}


def test_rates_of_several_clients() -> None:
    results = [{"count": 100, "seconds": 1.0}, {"count": 600, "seconds": 2.0}]
    assert rates(results) == {"rate": 400.0, "fairness": 0.5}


def test_percentiles() -> None:
    one = loops.percentiles([*range(1000, 101_000, 1000)])
    assert one == {"p50_us": 51.0, "p99_us": 100.0, "p99.9_us": 100.0}
    assert loops.percentiles([5000]) == {"p50_us": 5.0, "p99_us": 5.0, "p99.9_us": 5.0}
    assert loops.percentiles([*range(2000, 0, -1)])["p99.9_us"] == 1.999
    assert percentiles([one, {key: 60.0 for key in one}]) == {
        "p50_us": 60.0,
        "p99_us": 100.0,
        "p99.9_us": 100.0,
    }


# -- turns


@attrs.define
class Scripted:
    name: str
    log: list[str]

    def measure(self) -> Mapping[str, float]:
        self.log.append(self.name)
        return {"rate": float(len(self.log))}

    def pids(self) -> list[int]:
        return []


@attrs.frozen
class ScriptedWatch:
    cores: float

    def foreign_cores(self) -> float:
        return self.cores


def turns(rounds: int, repeats: int, foreign: list[float]) -> tuple[str, list[Round]]:
    log: list[str] = []
    left = iter(foreign)
    done = take_turns(
        [Scripted(name, log) for name in "abc"],
        rounds,
        repeats=repeats,
        watch=lambda: ScriptedWatch(next(left)),  # type: ignore[arg-type, return-value]
    )
    return "".join(log), done


def test_sides_take_turns_and_the_first_changes() -> None:
    log, done = turns(4, 2, [0.0] * 4)
    assert log == "abc" + "bca" + "cab" + "abc"
    assert [one.samples[0]["rate"] for one in done] == [1.0, 6.0, 8.0, 10.0]


def test_a_disturbed_round_is_done_again_at_most_twice() -> None:
    log, done = turns(2, 2, [0.9, 0.0, 0.9, 0.8, 0.7])
    assert log == "abc" * 2 + "bca" * 3
    assert [one.foreign_cores for one in done] == [0.0, 0.7]
    assert [one.disturbed for one in done] == [False, True]


def test_unknown_is_not_disturbed() -> None:
    assert not Round((), None).disturbed


# -- who else computes


STAT = "cpu  {user} 20 30 4000 50 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
PROCESS = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 {user} 22 90 91 20 0 1 0 5 6 7\n"


def test_ticks() -> None:
    assert busy_ticks(STAT.format(user=100)) == 100 + 20 + 30 + 6 + 7
    assert process_ticks(PROCESS.format(user=11)) == 33


def write_proc(proc: Path, all_user: int, own_user: int) -> None:
    (proc / str(os.getpid())).mkdir(exist_ok=True)
    (proc / "stat").write_text(STAT.format(user=all_user))
    (proc / str(os.getpid()) / "stat").write_text(PROCESS.format(user=own_user))


def test_what_is_not_ours_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("benchmarks._harness.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("benchmarks._harness.TICKS_PER_S", 100)
    write_proc(tmp_path, 1000, 500)
    watch = Watch(lambda: [], tmp_path)
    write_proc(tmp_path, 1300, 700)
    assert watch.foreign_cores() == pytest.approx((300 - 200) / 100 / 2.0)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert Watch(lambda: [], tmp_path / "absent").foreign_cores() is None


# -- the command


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *command.CASES,
        *command.COMMANDS,
    ]


def test_rows_go_to_both_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def run(quick: bool, rounds: int = 5, repeats: int = 2) -> list[Row]:
        given.update(quick=quick, rounds=rounds, repeats=repeats)
        return [row("c", None, RATE, "p", [(2.0, 1.0)])]

    monkeypatch.setattr(messaging, "run", run)
    out = tmp_path / "new" / "out.jsonl"
    arguments = ["messaging", "--quick", "--rounds", "7", "--goal", "M1", "--json", str(out)]
    assert command.main(arguments) == 0
    printed = capsys.readouterr()
    assert given == {"quick": True, "rounds": 7, "repeats": 2}
    assert "takes no --goal" in printed.err
    assert printed.out == out.read_text()
    assert tuple(json.loads(printed.out)) == KEYS


def test_what_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(command.CASES, "rtree", ("benchmarks.never", ""))
    assert command.main(["rtree"]) == 0
    assert "rtree left out" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "x"])
def test_rounds_that_cannot_be(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["messaging", "--rounds", rounds])
    assert "--rounds" in capsys.readouterr().err


def test_cells() -> None:
    made = row("c", "M1", RATE, "p", [(1_234_000.0, 9_999.9)], disturbed=2)
    cells = _report.cells(made)
    assert cells[:4] == ["c", "M1", "round trips (1/s)", "p"]
    assert cells[4:] == [
        "1.23 M / 1.23 M / 1.23 M",
        "10 K / 10 K / 10 K",
        "123 / 123 / 123",
        "1",
        "2",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (999.4, "999"),
        (999.9, "1 K"),
        (12_345.0, "12.3 K"),
        (2.5e9, "2.5 G"),
    ],
)
def test_short(value: float, expected: str) -> None:
    assert _report.short(value) == expected


def test_markdown() -> None:
    table = _report.markdown([row("c", None, RATE, "p", [(4.0, 2.0), (3.0, 1.0)])])
    assert table.splitlines()[2:] == [
        "| c |  | round trips (1/s) | p | 3 / 3.5 / 4 | 1 / 1.5 / 2 | 2 / 2.5 / 3 |"
    ]


# -- figure 6


def cell(take: str, ring: int, chunk: int, rate: float) -> dict[str, object]:
    sizes = {"ring_bytes": ring << 10, "chunk_bytes": chunk << 10}
    return {"take": take, **sizes, "bytes_per_s": rate * 1e9, "n": 1}


CELLS = [
    cell(take, ring, chunk, rate)
    for take in fig6.TAKES
    for ring, chunk, rate in ((64, 4, 1.0), (64, 8, 3.0), (1024, 4, 2.0), (1024, 8, 0.5))
]


def test_the_best_chunk_of_each_ring() -> None:
    lines = fig6.advice(CELLS).splitlines()[2:]
    assert lines == [
        "| 64 KiB | 8 KiB, 3.0 GB/s | 8 KiB, 3.0 GB/s |",
        "| 1 MiB | 4 KiB, 2.0 GB/s | 4 KiB, 2.0 GB/s |",
    ]


def test_runs_of_figure_6_are_merged_by_their_medians() -> None:
    texts = [json.dumps(cell("bytes", 64, 4, rate)) for rate in (1.0, 7.0, 2.0)]
    [made] = fig6.merged(texts)
    assert (made["bytes_per_s"], made["n"]) == (2e9, 3)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory needs memfd_create")
def test_figure_6_runs(tmp_path: Path) -> None:
    out, drawn = tmp_path / "new" / "cells.jsonl", tmp_path / "map.png"
    done = benchmarks("fig6", "--quick", "--json", str(out), "--png", str(drawn))
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(cells) == 8 and all(cell["bytes_per_s"] > 0 for cell in cells)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "| 1 MiB |" in done.stderr


def benchmarks(*words: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: matplotlib keeps its fonts open."""
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


# -- the report


def kept() -> list[Row]:
    metrics = [Metric(name, name, "") for name in report.COLUMNS]
    made = [row("peers/request", None, m, "slow", [(9.0, 1.0), (7.0, 3.0)]) for m in metrics]
    made += [row("peers/request", None, m, "fast", [(8.0, 90.0)]) for m in metrics]
    made += [row("peers/2-clients", None, RATE, "slow", [(5.0, 4.0)])]
    return made + [row("peers/16-clients", None, RATE, "slow", [(6.0, 2.0)])]


def test_tables_come_from_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in kept()))
    assert command.main(["report", "--short", "--json", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| fast | 90 / 90 / 90 | 90 / 90 / 90 | 90 / 90 / 90 |",
        "| l5 shm, asyncio | 8 / 8 / 8 | 8 / 8 / 8 | 8 / 8 / 8 |",
        "| slow | 1 / 2 / 3 | 1 / 2 / 3 | 1 / 2 / 3 |",
    ]
    assert report.crowds(kept()) == {
        "l5 shm, asyncio": {2: 5.0, 16: 6.0},
        "slow": {2: 4.0, 16: 2.0},
    }


def test_plots_come_from_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in kept()))
    benchmarks("report", "--json", str(file), "--png", str(tmp_path))
    for name in ("messaging.png", "messaging-clients.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


# -- the sides


def test_a_side_that_cannot_start_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerFailed, match="the server of nobody ended with 1"):
        Pair(Spec("nobody", "no_such_module"), str(tmp_path), 0.01).__enter__()
    assert "no_such_module" in capfd.readouterr().err


def test_an_echo_that_is_none_is_found() -> None:
    with pytest.raises(loops.NoEcho):
        loops.check(b"something else")


GOALS_OF_ROWS = {
    "M1": {("request/asyncio", "round trips"), ("request/asyncio", "p99")},
    "M1b": {("request/asyncio", "round trips")},
    "M2": {("request/trio", "round trips")},
    "M3": {("request/native", "round trips")},
    "M4": {("one-way/hot/views", "bandwidth"), ("one-way/cold/into", "bandwidth")},
    "M5": {("request/asyncio/beside-hog", "p99"), ("request/asyncio/one-core", "round trips")},
    "M6": {("request/asyncio/2-clients", "slowest over mean client")},
    "M6b": {("request-many/asyncio", "messages")},
    "M7": {("idle/asyncio", "processor time"), ("idle/trio", "wake-ups")},
    "M8": {("request/asyncio/tcp", "round trips"), ("request/trio/unix", "round trips")},
    "peers-bandwidth": {("peers/one-way", "bandwidth")},
    "peers": {("peers/request", "p99.9"), ("peers/request", "processor time of a million")},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory needs memfd_create")
@pytest.mark.parametrize("goal", GOALS_OF_ROWS)
def test_messaging_runs(goal: str) -> None:
    """Every case runs, its rows have the right keys, and the numbers are no nonsense."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "messaging", "--quick", "--goal", goal],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [r for r in rows if r["goal"] == goal or goal.startswith("peers")]
    assert {(r["case"], r["metric"]) for r in ours} >= GOALS_OF_ROWS[goal]
    for r in rows:
        assert tuple(r) == KEYS
        assert r["n"] == 1
        assert all(r[key]["min"] <= r[key]["median"] <= r[key]["max"] for key in ("ours", "ratio"))
        if goal != "M7":
            assert r["ours"]["min"] > 0 and r["peer_value"]["min"] > 0


SIZE = attrs.evolve(messaging.QUICK, clients_of_peers=(1, 32))


def test_the_other_cases_of_the_peers_are_those_that_run_above() -> None:
    """They take long to start, and differ from what runs by one argument each."""
    [alone] = side_by_side.one_client(SIZE, "")
    assert attrs.evolve(alone, name="", hogs=1) == attrs.evolve(
        next(side_by_side.beside_hog(SIZE, "")), name=""
    )
    [idle] = side_by_side.idle(SIZE, "")
    assert [peer.spec.name for peer in idle.peers] == [peer.spec.name for peer in alone.peers]
    crowds = list(side_by_side.many_clients(SIZE, ""))
    assert {case.ours.clients for case in crowds} == {1, 32}
    assert all(peer.spec.clients == case.ours.clients for case in crowds for peer in case.peers)
    assert {goal for goal in messaging.CASES if goal not in GOALS_OF_ROWS} == {
        "peers-hog",
        "peers-idle",
        "peers-clients",
        "ladder",
    }


def test_what_the_ladder_has_around_its_pairs(tmp_path: Path) -> None:
    """Its cases differ by what is set here; two tell by what they use that it is so."""
    names = {case.name for case in ladder.ladder(SIZE, "")}
    assert names == {f"ladder/{name}" for name in ladder.RUNGS}
    for told in ({"within": True}, {"beside": "connection", "restless": True}):
        spec = Spec("uvloop", "streams", what=("rate",), **told)
        with Pair(spec, str(tmp_path), 0.02) as pair:
            assert len(pair.pids()) == (1 if "within" in told else 2)
            assert pair.measure()["rate"] > 0
    spec = Spec("a socket", "streams", beside="thread", restless=True, client_on_one=True)
    with Pair(spec, str(tmp_path), 0.02) as pair:
        server, client = pair.pids()
        assert len(os.sched_getaffinity(client)) == 1
        assert os.sched_getaffinity(server) == os.sched_getaffinity(0)
        assert len(os.listdir(f"/proc/{client}/task")) == 2
        assert pair.measure()["rate"] > 0


def test_a_quota_is_for_both_ends(tmp_path: Path) -> None:
    try:
        with quota(0.5, f"l5-test-{os.getpid()}") as group:
            assert not (group / "cgroup.procs").read_text()
    except NoQuota as reason:
        pytest.skip(str(reason))
    assert not group.exists()
    spec = Spec("a socket", "streams", quota=0.5)
    with Pair(spec, str(tmp_path), 0.02) as pair:
        found = {Path(f"/proc/{pid}/cgroup").read_text() for pid in pair.pids()}
        assert len(found) == 1 and "/l5-bench-" in found.pop()
        assert pair.measure()["rate"] > 0


def test_what_a_side_uses_while_it_is_idle(tmp_path: Path) -> None:
    """Also of those without an event loop, and of one that has to be stopped between its turns."""
    spec = Spec("a socket", "sockets_blocking", clients=2, what=("idle",), restless=True)
    with Pair(spec, str(tmp_path), 0.02) as pair:
        assert len(pair.pids()) == 3
        wait_until_stopped(pair.pids())
        assert pair.measure()["cpu_percent"] < 300
        wait_until_stopped(pair.pids())


def wait_until_stopped(pids: list[int]) -> None:
    for pid in pids:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)


@pytest.mark.skipif(not native.available, reason=native.reason)
def test_watching_runs() -> None:
    """Each of its ways is measured while it is on, and is off afterwards."""
    rows = list(watching.run(quick=True, rounds=1))
    assert [row["case"] for row in rows] == [
        f"watching/{transport}, {way}"
        for transport in ("shm", "unix")
        for way in ("l5 top", "a tap")
    ]
    assert all(row["ours"]["median"] > 0 and row["peer_value"]["median"] > 0 for row in rows)
    assert not _live.on_session


def test_what_a_server_has_started_belongs_to_it() -> None:
    inner = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE) as process:
        while len(with_children(process.pid)) < 2:
            time.sleep(0.01)
        process.communicate(b"\n")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory needs memfd_create")
def test_messaging_blocking_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "messaging-blocking", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    peers = {r["peer"] for r in rows if r["case"] == "request/blocking"}
    assert len(peers) == 4
    assert all(tuple(r) == KEYS and r["ours"]["min"] > 0 for r in rows)


def test_prefork_web_runs() -> None:
    done = benchmarks("prefork-web", "--quick")
    every = list(map(json.loads, done.stdout.splitlines()))
    rows = {r["metric"]: r for r in every if r["peer"] == "STRtree in each worker"}
    assert len(every) == 2 * len(rows) and all(
        tuple(r) == KEYS and r["ours"]["min"] > 0 for r in rows.values()
    )
    assert "p50 of a request by HTTP" in rows
    assert rows["memory for the index"]["ratio"]["max"] < 0.5  # one tree, not one for each of two
