"""Reading rectangles: every format, and a sentence for each thing that can be wrong."""

import re
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely

from catfish_app import _load
from catfish_app._load import LoadError, read_table
from tests.catfish._support import boxes

RECTS = boxes(10)


def test_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RECTS)
    table = read_table(str(tmp_path / "a.npy"))
    assert np.array_equal(table.rects, RECTS) and table.ids is None and table.name == "a.npy"
    np.save(tmp_path / "points.npy", RECTS[:, :2].astype("f4"))
    points = read_table(str(tmp_path / "points.npy")).rects
    assert points.shape == (10, 4) and np.array_equal(points[:, :2], points[:, 2:])
    ids = np.arange(10, dtype="u8") + np.uint64(2**63)
    np.savez(tmp_path / "a.npz", rects=RECTS, ids=ids)
    table = read_table(str(tmp_path / "a.npz"))
    assert np.array_equal(table.rects, RECTS) and np.array_equal(table.ids, ids)


@pytest.mark.parametrize(
    ("text", "rects", "ids"),
    [
        ("0,1,2,3\n4,5,6,7\n", [[0, 1, 2, 3], [4, 5, 6, 7]], None),
        ("0,1,2,3,18446744073709551615\n", [[0, 1, 2, 3]], [2**64 - 1]),
        ("0.5,1e2\n", [[0.5, 100, 0.5, 100]], None),
        ("\ufeffid,XMIN,ymin, xmax,ymax,n\n7,0,1,2,3,x\n", [[0, 1, 2, 3]], [7]),
        ("name,y,x\nhere,1,2\n", [[2, 1, 2, 1]], None),
        ("xmin,ymin,xmax,ymax\n", [], None),
    ],
)
def test_csv(text: str, rects: list[list[float]], ids: list[int] | None, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    table = read_table(str(path))
    assert table.rects.tolist() == rects
    assert (None if table.ids is None else table.ids.tolist()) == ids


KEEPS = "PROJ keeps its database open as long as the process lives"


@pytest.mark.leaks(reason=KEEPS)
def test_what_gis_programs_write(tmp_path: Path) -> None:
    shapes = [shapely.box(*row) for row in RECTS.tolist()]
    frame: Any = geopandas.GeoDataFrame(
        {"n": range(11)}, geometry=[*shapes[:4], None, *shapes[4:]], crs="EPSG:4326"
    )
    places = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    for suffix in ("geojson", "shp", "gpkg"):
        frame.to_file(tmp_path / f"a.{suffix}")
        table = read_table(str(tmp_path / f"a.{suffix}"))
        first = 1 if suffix == "gpkg" else 0  # GeoPackage counts its features from 1
        assert np.allclose(table.rects, RECTS)
        assert table.ids is not None and (table.ids - np.uint64(first)).tolist() == places
        assert (table.crs, table.skipped) == ("EPSG:4326", 1)
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(str(tmp_path / "a.parquet"))
    assert np.array_equal(table.rects, RECTS)
    assert table.ids is not None and table.ids.tolist() == places
    assert (table.crs, table.skipped) == ("EPSG:4326", 1)
    frame.dropna().to_file(tmp_path / "a.fgb")
    table = read_table(str(tmp_path / "a.fgb"))  # packed by Hilbert order, so in another order
    assert np.allclose(np.sort(table.rects, axis=0), np.sort(RECTS, axis=0))
    assert table.skipped == 0


@pytest.mark.leaks(reason=KEEPS)
def test_one_layer_of_several(tmp_path: Path) -> None:
    path = tmp_path / "two.gpkg"
    for layer, row in (("one", RECTS[0]), ("two", RECTS[1])):
        frame: Any = geopandas.GeoDataFrame(geometry=[shapely.box(*row.tolist())], crs=4326)
        frame.to_file(path, layer=layer)
    assert np.allclose(read_table(str(path), layer="two").rects, RECTS[1])
    with pytest.raises(LoadError, match="three"):
        read_table(str(path), layer="three")


def test_the_demo() -> None:
    table = read_table("demo")
    assert table.rects.shape == (472_660, 4) and table.crs == "EPSG:4326"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "the name tells the format, one of .npy .npz .csv"),
        ("a.csv", b"1,2,3\n", "without a header 4 columns"),
        ("a.csv", b"", "without a header"),
        ("a.csv", b"a,b\n1,2\n", "its header must name xmin"),
        ("a.csv", b"x,y\n1,oops\n", "oops"),
        ("a.csv", b"x,y,id\n1,2,-3\n", "-3"),
        ("a.csv", b"x,y\n\xff\xfe,2\n", "a.csv"),
        ("a.npy", b"", "a.npy"),
        ("a.npy", b"\x93NUMPY junk", "a.npy"),
        ("a.npz", b"PK junk", "a.npz"),
        ("a.geojson", b"{", "a.geojson"),
        ("a.parquet", b"PAR1", "a.parquet"),
    ],
)
def test_what_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match=re.escape(message)) as raised:
        read_table(str(tmp_path / name))
    assert name in str(raised.value)


def test_arrays_that_are_none_of_rectangles(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 5)))
    with pytest.raises(LoadError, match=r"shape \(3, 5\)"):
        read_table(str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", np.array(["a", "b"]))
    with pytest.raises(LoadError, match="shape"):
        read_table(str(tmp_path / "b.npy"))
    np.save(tmp_path / "c.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(LoadError, match="pickle"):
        read_table(str(tmp_path / "c.npy"))
    np.savez(tmp_path / "d.npz", boxes=RECTS)
    with pytest.raises(LoadError, match="'rects' is wanted, and may be 'ids'; has boxes"):
        read_table(str(tmp_path / "d.npz"))


def test_no_such_file() -> None:
    with pytest.raises(LoadError, match="there is no such file"):
        read_table("nowhere.csv")


def test_an_extra_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(_load.importlib, "import_module", missing)
    for name, package in (("a.fgb", "pyogrio"), ("a.parquet", "geopandas")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(LoadError, match=f"needs {package}: pip install 'l5net"):
            read_table(str(tmp_path / name))
