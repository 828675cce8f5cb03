"""Read rectangles and ids from files: NumPy, CSV, and what GIS programs write.

A table is n x 4 rectangles (xmin, ymin, xmax, ymax) and, if the file has them, ids. Geometries
become their boxes. Coordinates are taken as they are: the tree is planar and knows no axis order
and no reference system beside the one that the file's are in.
"""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from catfish_app._data import demo_segments
from catfish_app._rtree import Floats, Ids

DEMO = "demo"
GEO_SUFFIXES = (".geojson", ".json", ".fgb", ".shp", ".gpkg")
PARQUET_SUFFIXES = (".parquet", ".geoparquet")
SUFFIXES = (".npy", ".npz", ".csv", *GEO_SUFFIXES, *PARQUET_SUFFIXES)
_RECT_NAMES = ("xmin", "ymin", "xmax", "ymax")
_POINT_NAMES = ("x", "y")
_ID_NAME = "id"
_INSTALL = "pip install 'l5net[geo]'"


class LoadError(Exception):
    """A file cannot be read as rectangles; the message says why, and what would do."""


@attrs.frozen(eq=False)
class Table:
    """What was read."""

    name: str
    rects: Floats
    ids: Ids | None
    """None: the row numbers."""
    crs: str | None = None
    """The reference system that the file names."""
    skipped: int = 0
    """Features without a geometry."""


def read_table(source: str, *, layer: str | None = None) -> Table:
    """Read a file, or the demo's data for ``demo``; raises `LoadError`.

    `layer` chooses one of several in a GIS file.
    """
    if source == DEMO:
        return Table("Natural Earth 1:10m, coasts and borders", demo_segments(), None, "EPSG:4326")
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        known = " ".join(SUFFIXES)
        raise LoadError(f"{source}: the name tells the format, one of {known} (or 'demo')")
    if not path.exists():
        raise LoadError(f"{source}: there is no such file")
    if suffix == ".npy":
        return _from_npy(path)
    if suffix == ".npz":
        return _from_npz(path)
    if suffix == ".csv":
        return _from_csv(path)
    if suffix in PARQUET_SUFFIXES:
        return _from_parquet(path)
    return _from_vector(path, layer)


def _boxes(path: Path, array: Any, what: str = "") -> Floats:
    """Return n x 4 from n x 4, or from the n x 2 of points."""
    rows = np.asarray(array)
    if rows.ndim != 2 or rows.shape[1] not in (2, 4) or rows.dtype.kind not in "iuf":
        raise LoadError(
            f"{path}: {what or 'the array'} has shape {rows.shape} and type {rows.dtype}; wanted "
            "are numbers of shape (n, 4): xmin, ymin, xmax, ymax, or (n, 2): x, y"
        )
    rows = rows.astype(np.float64)
    return np.hstack((rows, rows)) if rows.shape[1] == 2 else np.ascontiguousarray(rows)


def _from_npy(path: Path) -> Table:
    try:
        return Table(path.name, _boxes(path, np.load(path, allow_pickle=False)), None)
    except (ValueError, OSError, EOFError) as error:
        raise LoadError(f"{path}: {error}") from None


def _from_npz(path: Path) -> Table:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays.files)
            if "rects" not in names:
                held = ", ".join(names) or "nothing"
                raise LoadError(f"{path}: an array 'rects' is wanted, and may be 'ids'; has {held}")
            rects = _boxes(path, arrays["rects"], "'rects'")
            ids = arrays["ids"] if "ids" in names else None
    except (ValueError, OSError, EOFError) as error:
        raise LoadError(f"{path}: {error}") from None
    return Table(path.name, rects, ids)


def _from_csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip().lower() for name in next(reader, list[str]())]
            header = any(not _is_number(name) for name in names)
            columns = _csv_columns(path, names, header)
            empty = header and next(reader, None) is None
        rows = np.empty(0, _csv_type(columns)) if empty else _csv_rows(path, columns, header)
    except (ValueError, UnicodeDecodeError, csv.Error) as error:
        raise LoadError(f"{path}: {error}") from None
    sides = [name for name in columns if name != _ID_NAME]
    rects = _boxes(path, np.stack([rows[name] for name in sides], axis=1))
    return Table(path.name, rects, rows[_ID_NAME] if _ID_NAME in columns else None)


def _csv_type(columns: dict[str, int]) -> np.dtype[Any]:
    return np.dtype([(name, "u8" if name == _ID_NAME else "f8") for name in columns])


def _csv_rows(path: Path, columns: dict[str, int], header: bool) -> Any:
    return np.loadtxt(
        path,
        dtype=_csv_type(columns),
        delimiter=",",
        skiprows=int(header),
        usecols=list(columns.values()),
        ndmin=1,
        encoding="utf-8-sig",
    )


def _csv_columns(path: Path, names: list[str], header: bool) -> dict[str, int]:
    """Return where the columns are, by name; without a header by their number."""
    if not header:
        orders = {2: _POINT_NAMES, 4: _RECT_NAMES, 5: (*_RECT_NAMES, _ID_NAME)}
        order = orders.get(len(names))
        if order is None:
            raise LoadError(
                f"{path}: without a header 4 columns (xmin, ymin, xmax, ymax), 5 (with an id) or 2 "
                f"(x, y) are wanted; it has {len(names)}"
            )
        return {name: index for index, name in enumerate(order)}
    for wanted in (_RECT_NAMES, _POINT_NAMES):
        if all(name in names for name in wanted):
            also = (_ID_NAME,) if _ID_NAME in names else ()
            return {name: names.index(name) for name in (*wanted, *also)}
    raise LoadError(
        f"{path}: its header must name xmin, ymin, xmax, ymax, or x, y (and may name id); it has "
        f"{', '.join(names)}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _optional(package: str, path: Path) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise LoadError(f"{path}: reading this format needs {missing}: {_INSTALL}") from None


def _from_vector(path: Path, layer: str | None) -> Table:
    pyogrio = _optional("pyogrio", path)
    errors = _optional("pyogrio.errors", path)
    try:
        info = pyogrio.read_info(path, layer=layer)
        numbers, bounds = pyogrio.read_bounds(path, layer=layer)
    except (errors.DataSourceError, errors.DataLayerError) as error:
        raise LoadError(f"{path}: {error}") from None
    rects = np.ascontiguousarray(np.asarray(bounds, np.float64).T)
    return _with_geometry(path, rects, np.asarray(numbers), info.get("crs"))


def _from_parquet(path: Path) -> Table:
    geopandas = _optional("geopandas", path)
    try:
        frame = geopandas.read_parquet(path)
    except (ValueError, OSError, ImportError) as error:
        raise LoadError(f"{path}: {error}") from None
    rects = np.ascontiguousarray(frame.bounds.to_numpy(np.float64))
    crs = None if frame.crs is None else frame.crs.to_string()
    return _with_geometry(path, rects, np.arange(len(rects)), crs)


def _with_geometry(path: Path, rects: Floats, ids: Any, crs: str | None) -> Table:
    """Leave out features without a geometry; the ids stay those of the file."""
    has = ~np.isnan(rects).any(axis=1)
    numbers = ids.astype(np.int64)[has].astype(np.uint64)
    return Table(path.name, rects[has], numbers, crs, int(len(rects) - has.sum()))
