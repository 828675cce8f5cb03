"""The readers of profiles, what is counted of a real end, and what is said without a tool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import _profile_counts, profile
from l5 import native

TEXT = """# callgrind format
version: 1
positions: line
events: Ir

ob=(1) /usr/lib/libpython3.11.so.1.0
fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
10 5
+3 7
cob=(2) /x/l5/_native.cpython-311.so
cfi=(2) ring.c
cfn=(2) l5_ring_request
calls=2 30
* 1000
-1 2

ob=(2)
fl=(2)
fn=(2)
30 400
fe=(3) inlined.h
5 90
cob=(3) /lib/libc.so.6
cfn=(3) malloc
calls=1 0
31 500

ob=(3)
fn=(3)
0 500

totals: 1004
"""
OWN = {
    ("/usr/lib/libpython3.11.so.1.0", "_PyEval_EvalFrameDefault"): 14,
    ("/x/l5/_native.cpython-311.so", "l5_ring_request"): 490,
    ("/lib/libc.so.6", "malloc"): 500,
}


def test_what_a_callee_took_is_not_counted_twice() -> None:
    counts = profile.instructions(TEXT)
    assert counts == OWN
    assert sum(counts.values()) == int(TEXT.split("totals:")[1])


def test_a_request_is_the_difference_of_two_runs() -> None:
    many = {key: 3 * value for key, value in OWN.items()}
    assert profile.per_request(OWN, many, 4) == {key: value / 2 for key, value in OWN.items()}
    new = ("/lib/libc.so.6", "read")
    assert profile.per_request(OWN, {**OWN, new: 8}, 4)[new] == 2


def test_every_function_counts_to_one_part() -> None:
    parts = profile.by_part(OWN)
    assert sum(parts.values()) == 1004
    assert parts["interpreter: byte codes"] == 14
    assert parts["l5's C: messages"] == 490
    assert parts["memory: objects made and freed"] == 500
    rows = list(profile.rows_of("client", OWN))
    assert {row["end"] for row in rows} == {"client"}
    assert [row["value"] for row in rows if row.get("part") == "all"] == [1004]
    assert next(row["function"] for row in rows if "function" in row) == "malloc"


def test_without_valgrind_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert profile.main([]) == 1
    assert "needs valgrind: install it" in capsys.readouterr().err


STRACE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.30    0.000415           0       600           epoll_wait
 38.70    0.000262           2       100        60 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.000677           0       700        60 total
"""


def test_the_table_of_strace() -> None:
    assert _profile_counts.parse_strace(STRACE) == {"epoll_wait": 600, "recvfrom": 100}


ASK = "<module> (x/_profile_ends.py:9);run_forever (asyncio/base_events.py:607)"
REQUEST = f"{ASK};ask (x/_profile_ends.py:8);Connection.request (l5/_connection.py:117)"
RING = f"{REQUEST};l5_ring_request (l5/native/_ring_hot.c:110)"


@pytest.mark.parametrize(
    ("stack", "layer"),
    [
        (ASK, "event loop and anyio"),
        (f"{ASK};select (selectors.py:468);epoll_wait (libc.so.6)", "epoll_wait"),
        (f"{ASK};ask (x/_profile_ends.py:8)", "the program"),
        (REQUEST, "l5's Python"),
        (f"{REQUEST};PyObject_Malloc (libpython3.11.so)", "l5's Python"),
        (f"{RING};l5_channel_take (l5/native/channel.c:9);0x7f (libc.so)", "messages, in l5's C"),
        (
            f"{RING};l5_spin (l5/native/wait.c:1);l5_load_seq (l5/native/_atomic.h:4)",
            "waiting for the other end, in l5's C",
        ),
        (f"{RING};yield (l5/native/wait.c:1);sched_yield (libc.so.6)", None),
        (f"{RING};l5_spin (l5/native/wait.c:1);echo (x/_profile_ends.py:66)", "the program"),
    ],
)
def test_whose_a_sample_is(stack: str, layer: str | None) -> None:
    sums = _profile_counts.by_layer(f"{stack} 3\n{ASK} 1\n")
    assert sums[layer or "waiting for the other end, in l5's C"] == (4 if stack == ASK else 3)
    assert sum(sums.values()) == 4


@pytest.mark.skipif(not native.available, reason=native.reason)
@pytest.mark.checkout
def test_byte_codes_of_a_real_client(tmp_path: Path) -> None:
    pair = _profile_counts.Pair(profile.ROOT, str(tmp_path), os.environ)
    rows = list(_profile_counts.interpreter(pair, "client", 16, 272))
    found = {row["part"]: row["value"] for row in rows}
    assert {row["end"] for row in rows} == {"client"}
    # One call sends a request and takes its answer; more where the answer was not in time.
    assert 1 <= found["calls into l5's C"] <= found["calls of functions in C"]
    assert found["byte codes"] > 20


def test_lines_of_a_message() -> None:
    values = {row["part"]: row["value"] for row in _profile_counts.lines(profile.ROOT)}
    assert values["a message of 64 bytes"] == 2  # there are 24 bytes in front of it


def test_what_cannot_be_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--tree", str(tmp_path)], "no built l5 is there"),
        (["--by", "eye"], "expected some of instructions"),
        (["--requests", "0"], "must be at least 1"),
    ):
        with pytest.raises(SystemExit):
            profile.main(arguments)
        assert said in capsys.readouterr().err
