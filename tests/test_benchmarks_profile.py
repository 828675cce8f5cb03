"""The reader of callgrind's profiles, and what is said where there is no valgrind."""

from __future__ import annotations

import pytest

from benchmarks import profile

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
