"""The tables of L5's evaluation run, and find what they look for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import l5_tables
from benchmarks._postgres import Unavailable
from benchmarks.messaging_peers import native_echo
from benchmarks.messaging_peers.ycsb_data import (
    FIELD_BYTES,
    ROW_BYTES,
    WrongRow,
    check_field,
    drawn,
    keys,
    row,
)

SIZE = attrs.evolve(l5_tables.QUICK, clients=(1,))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"rows": 300, "library": native_echo.build(str(tmp_path), "ycsb")}


def test_rows_tell_their_keys() -> None:
    made = row(123)
    assert len(made) == ROW_BYTES
    check_field(123, 7, made[7 * FIELD_BYTES : 8 * FIELD_BYTES])
    with pytest.raises(WrongRow):
        check_field(124, 7, made[7 * FIELD_BYTES : 8 * FIELD_BYTES])


def test_keys_follow_zipf() -> None:
    asked = drawn({"rows": 1000})
    ordered = keys(1000)
    # With z = 1 and 1000 rows the first key has a share of 1 / H(1000) = 0.134.
    assert 0.12 < asked.count(ordered[0]) / len(asked) < 0.15
    assert 1.6 < asked.count(ordered[0]) / asked.count(ordered[1]) < 2.5


def test_on_one_host(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise Unavailable("not for this test")

    monkeypatch.setattr(l5_tables, "cluster", none)
    monkeypatch.setattr(l5_tables, "frameworks", lambda *_: iter(()))  # has a test of its own
    rows = list(l5_tables.on_one_host(options, SIZE, str(tmp_path)))
    assert [made["case"] for made in rows] == (
        3 * ["table-1/ycsb-c"] + 3 * ["table-2/scan"] + 2 * ["figure-10/1"] + ["figure-10/open"]
    )
    assert all(made["ours"]["min"] > 0 and made["peer_value"]["min"] > 0 for made in rows)


def test_frameworks(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are installed find what they look for; the others, and RDMA, are named."""
    rows = list(l5_tables.frameworks(options, SIZE, str(tmp_path)))
    assert {made["case"] for made in rows} == {"figure-11/ycsb-c"}
    assert all(made["peer_value"]["min"] > 0 for made in rows)
    assert "pyzmq on asyncio, tcp" in {made["peer"] for made in rows}
    assert "figure-11/ycsb-c, rdma left out" in capsys.readouterr().err


def test_between_hosts(options: dict[str, Any], tmp_path: Path) -> None:
    told = [sys.executable, "-m", "benchmarks", "l5-tables", "--quick", "--token", "secret"]
    serving = subprocess.Popen(
        [*told, "--serve", "l5://127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    assert serving.stderr is not None
    with serving, serving.stderr:
        try:
            line = serving.stderr.readline()
            assert line.startswith("serving 1000 rows at l5://")
            url = line.split()[-1]
            wanted = options | {"rows": 1000}
            made = list(l5_tables.between_hosts(url, "secret", wanted, SIZE, str(tmp_path)))
        finally:
            serving.terminate()
    assert [one["case"] for one in made] == ["table-3/ycsb-c", "table-4/scan"]
    assert {one["peer"] for one in made} == {"l5 tcp"}
