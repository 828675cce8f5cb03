"""The figures of the paper on Catfish: how long they measure, what on, and how it is shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import l5
from benchmarks import __main__ as command
from benchmarks.catfish import _quota, _served, figures, rea02, tables
from benchmarks.catfish._figure import CLUSTER, HERE, Pace, Point, Scope, rows_of
from benchmarks.catfish._served import Setup
from catfish_app import RTree


def clock(*times: float) -> Iterator[float]:
    yield from times
    raise AssertionError("looked at the clock once more than expected")


def test_a_part_has_its_share_of_the_time_and_one_round_at_least() -> None:
    now = clock(0, 0, 0, 10, 20, 30, 30, 50)
    pace = Pace(1.0, now=lambda: next(now))
    # 60 s for two parts: 30 s each, in which three rounds of 10 s fit.
    rounds = pace.rounds(5, parts_left=2)
    assert [next(rounds) for _ in range(3)] == [0, 1, 2]
    assert list(rounds) == []
    # 30 s are left; a round takes 50.
    slow = Pace(0.5, now=lambda: 0.0).rounds(3, parts_left=1)
    assert list(slow) == [0, 1, 2]


def test_rounds_end_where_they_are_wanted_no_more() -> None:
    assert list(Pace(1.0).rounds(3, parts_left=1)) == [0, 1, 2]
    assert list(Pace(1e-9).rounds(3, parts_left=1)) == [0]


# ---- a share of a processor


def test_a_quota_of_the_kernels_controller_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with pytest.raises(OSError), _quota.group(0.25, tmp_path) as procs:  # a real one has no files
        assert (procs.parent / "cpu.cfs_quota_us").read_text() == "2500"
        assert (procs.parent / "cpu.cfs_period_us").read_text() == str(_quota.PERIOD_US)


def test_a_quota_of_the_kernels_controller_version_2(tmp_path: Path) -> None:
    with pytest.raises(OSError), _quota.group(0.5, tmp_path) as procs:
        assert (procs.parent / "cpu.max").read_text() == f"5000 {_quota.PERIOD_US}"


def test_where_there_is_no_quota_it_is_said_why(tmp_path: Path) -> None:
    with pytest.raises(_quota.NoQuota, match="gone"), _quota.group(0.5, tmp_path / "gone"):
        pass
    with pytest.raises(_quota.NoQuota, match="1000 us"), _quota.group(0.01, tmp_path):
        pass


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
def test_what_cannot_be_limited_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(share: float) -> Any:
        raise _quota.NoQuota("not here")

    monkeypatch.setattr(_quota, "group", refuse)
    scope = Scope(quick=True, rounds=1, seconds=0.02)
    limited = Setup("limited", _served.PURE, quota=0.5)
    data = _served.of_paper(scope, ("1e-05",))
    assert list(_served.points(scope, data, setups=(limited,))) == []
    assert "limited left out: not here" in capsys.readouterr().err


# ---- who searches, and what comes of it


@pytest.mark.skipif(not l5.native.available, reason=l5.native.reason)
def test_clients_of_all_kinds_search_and_insert_and_leave_the_tree_as_it_was() -> None:
    scope = Scope(quick=True, rounds=1, seconds=0.02)
    data = _served.of_paper(scope, ("1e-05", "0.01"))
    setup = Setup("here", _served.PURE, judged=_served.R9)
    found = list(_served.points(scope, data, insert_share=0.5, setups=(setup,)))
    by_client = {
        (p.panel, p.x, p.method): p.values["offloaded"][0] for p in found if "rate" in p.values
    }
    assert len(by_client) == 2 * 2 * 3
    for (_, _, method), share in by_client.items():
        assert share == {"server only": 0.0, "client only": 1.0}.get(method, share)
    judged = [point for point in found if "vs_best" in point.values]
    assert [point.goal for point in judged] == ["R9"] * 4
    assert {point.place for point in found} == {"here"}


# ---- stand-ins for rea02


def test_polylines_in_bins_become_rectangles() -> None:
    """Bin 0 is the degree at the north pole and longitude 0; 360 to a row."""
    bins = np.zeros(180 * 360, np.int64)
    first, count = bins.copy(), bins.copy()
    place = (89 - 40) * 360 + 200  # 40 N, 200 E
    first[place], count[place] = 0, 2
    other = (89 - 40) * 360 + 20  # not in the Americas
    first[other], count[other] = 2, 1
    points = np.array([3, 2, 2])
    x = np.array([0, 65535, 13107, 6553, 0, 0, 9], np.uint16)
    y = np.array([0, 13107, 26214, 0, 65535, 0, 9], np.uint16)
    found = rea02.segments(first, count, points, x, y)
    expected = [
        [200.0, 40.0, 200 + 6553 / 65535, 41.0],
        [200.0, 40.0, 201.0, 40.2],
        [200.2, 40.2, 201.0, 40.4],
    ]
    assert found[np.lexsort(found.T[::-1])] == pytest.approx(np.array(sorted(expected)), abs=1e-4)


def test_queries_find_what_the_papers_find() -> None:
    made = rea02.made("streets", rea02.streets(20_000), seed=1)
    offsets, _ = RTree.bulk(made.rects).search_many(made.queries)
    found = np.diff(offsets.astype(np.int64))
    assert np.percentile(found, 2) > 40 and np.percentile(found, 98) < 170
    assert made.rects.min() >= 0 and made.rects.max() <= 1


def test_shorelines_that_are_not_installed_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(rea02.Missing, match="apt-get install gmt-gshhg-full"):
        rea02.shores(tmp_path / "none.nc")


def test_shorelines_are_read_from_their_file(tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    place = (89 - 40) * 360 + 200
    bins = {
        "Id_of_first_segment_in_a_bin": ("i4", np.zeros(180 * 360)),
        "N_segments_in_a_bin": ("i2", np.eye(1, 180 * 360, place)[0]),
    }
    lines = {"Embedded_npts_levels_exit_entry_for_a_segment": ("i4", np.array([3 << 9 | 5]))}
    dots = {  # as in the file: 16 bits, and signed
        "Relative_longitude_from_SW_corner_of_bin": ("i2", np.array([0, -1, -32768])),
        "Relative_latitude_from_SW_corner_of_bin": ("i2", np.array([0, 0, 256])),
    }
    with netcdf.Dataset(tmp_path / "shores.nc", "w") as made:
        for name, variables in (("bins", bins), ("lines", lines), ("dots", dots)):
            for label, (kind, numbers) in variables.items():
                if name not in made.dimensions:
                    made.createDimension(name, len(numbers))
                made.createVariable(label, kind, (name,))[:] = numbers
    found = rea02.shores(tmp_path / "shores.nc")
    height = 256 / 65535
    expected = [[200, 40, 201, 40], [200 + 32768 / 65535, 40, 201, 40 + height]]
    assert found == pytest.approx(np.array(expected))


# ---- pictures and tables


def points() -> list[Point]:
    simulated = [
        Point("scale", m, x, {"rate": (1e5 * x,)}, True) for m in ("a", "adaptive") for x in (2, 4)
    ]
    measured = [
        Point("scale", "server only", x, {"rate": (9.0, 8.0, 7.5), "mean_us": (5.0,)}, False)
        for x in (1, 2)
    ]
    ratio = Point("scale", "adaptive", 1, {"vs_best": (0.97,)}, False, "R9", "link")
    return [*simulated, *measured, ratio]


def test_rows_tell_where_they_come_from() -> None:
    rows = [row for point in points() for row in rows_of("catfish-fig10", point)]
    assert {(row["setup"], row["simulated"]) for row in rows} == {
        (CLUSTER, True),
        (HERE, False),
        ("link", False),
    }


@pytest.mark.parametrize(
    ("place", "text"),
    [(1e-5, "0.00001"), (2, "2"), (256, "256"), (16384, "16Ki"), (8 << 20, "8Mi"), (3000, "3k")],
)
def test_places_are_counts_sizes_and_scales(place: float, text: str) -> None:
    from benchmarks.catfish import _draw

    assert _draw.place_text(place) == text


@pytest.mark.leaks("matplotlib keeps its fonts open")
def test_measured_points_are_drawn_apart_from_simulated_ones(tmp_path: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.colors import to_hex

    from benchmarks import _plots
    from benchmarks.catfish import _draw
    from benchmarks.catfish.fig10 import THROUGHPUT

    rows = [row for point in points() for row in rows_of("catfish-fig10", point)]
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plots, "save", lambda drawn, path: kept.append(drawn))
        _draw.draw(tmp_path / "f.png", "Figure", (THROUGHPUT,), "clients", rows)
    [drawn] = kept
    simulated, measured = (part.axes[0] for part in drawn.subfigs)
    assert [line.get_marker() for line in simulated.lines] == ["None", "None"]
    assert measured.lines[0].get_marker() != "None" and measured.containers
    assert to_hex(measured.get_facecolor()) == _draw.TINT != to_hex(simulated.get_facecolor())
    assert simulated.get_ylabel() == "requests/s" and simulated.get_xlabel() == "clients"
    assert [part.get_suptitle() for part in drawn.subfigs] == [CLUSTER, HERE]
    pyplot.close(drawn)
    _draw.draw(tmp_path / "f.png", "Figure", (THROUGHPUT,), "clients", rows)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no rows"):
        _draw.draw(tmp_path / "g.png", "Figure", (THROUGHPUT,), "clients", rows[-1:])


def test_tables_have_methods_down_and_clients_across(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for point in points() for row in rows_of("catfish-fig10", point)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tables.main([str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "| server only | 8 | 8 |" in said
    assert "| adaptive | 200,000 | 400,000 |" in said
    [goal] = [line for line in said if line.startswith("| R9: catfish-fig10/scale, link")]
    assert goal.endswith("| 0.97 |")


def test_softroce_draws_what_was_kept(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.main(["catfish-softroce", "--accelerator", "none"])


# ---- all of them


@pytest.mark.leaks("matplotlib keeps its fonts open")
def test_all_figures_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of them stands for all: run, taken into the documentation, shown as tables."""
    out, images = tmp_path / "out", tmp_path / "images"
    images.mkdir()
    monkeypatch.setattr(figures, "IMAGES", images)
    assert command.main(["catfish-figures", "--out", str(out), "--publish"]) == 1
    assert "holds no pictures" in capfd.readouterr().err
    given = ["catfish-figures", "--quick", "--out", str(out), "--only", "fig8"]
    assert command.main(given) == 0
    said = capfd.readouterr()
    assert "fig8: 48 rows" in said.err and not said.out
    assert {path.name for path in out.iterdir()} == {"fig8.jsonl", "fig8.png"}
    assert command.main(["catfish-figures", "--out", str(out), "--publish"]) == 0
    assert [path.name for path in images.iterdir()] == ["catfish-fig8.png"]
    assert "| client only, multi-issue |" in capfd.readouterr().out


def test_figures_that_fail_are_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, ...]] = []

    def fails(name: str, *words: str) -> bool:
        ran.append((name, *words[:1]))
        return name not in ("fig2", "fig11")

    monkeypatch.setattr(figures, "command", fails)
    assert command.main(["catfish-figures", "--out", str(tmp_path), "--without", "softroce"]) == 1
    assert ran[:2] == [("fig2", "--full"), ("fig7", "--full")]
    assert ("fig13", "--from") in ran and ran[-1] == ("fig14", "--full")
    assert "failed: fig2, fig10\n" in capsys.readouterr().err
