"""A tree of geometries, asked as geopandas asks its own (extra ``geo``).

The tree finds the boxes; shapely decides what is really so. Ids are row numbers of the frame, so
the tree may also be served, saved or searched by itself.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from catfish_app._rtree import Floats, RTree

__all__ = ["GeoIndex", "from_geodataframe"]

Indices = npt.NDArray[np.intp]
PREDICATES = (
    None,
    "contains",
    "contains_properly",
    "covered_by",
    "covers",
    "crosses",
    "dwithin",
    "intersects",
    "overlaps",
    "touches",
    "within",
)
FIRST_CANDIDATES = 4
"""How many of the nearest boxes are looked at to bound the distance of the nearest geometry."""


def from_geodataframe(frame: Any, *, capacity: int | None = None) -> GeoIndex:
    """Index a GeoDataFrame, a GeoSeries, or an array of shapely geometries.

    Rows without a geometry, or with an empty one, are never found. `capacity` leaves room for
    rectangles that are inserted later into `GeoIndex.tree`. Raises ModuleNotFoundError without the
    extra ``geo``.
    """
    return GeoIndex(_geometries(frame), crs=getattr(frame, "crs", None), capacity=capacity)


class GeoIndex:
    """Geometries and the tree of their boxes; see `from_geodataframe`.

    `query` and `nearest` take and return what the same methods of ``GeoDataFrame.sindex`` do. A
    geometry to ask with may be a shapely geometry, an array of them, a GeoSeries or GeoDataFrame.
    Coordinates are taken as they are; series of another reference system are refused.
    """

    def __init__(self, geometries: Any, *, crs: Any = None, capacity: int | None = None) -> None:
        self.geometries: npt.NDArray[Any] = geometries
        self.crs = crs
        bounds = _bounds(geometries)
        rows = np.flatnonzero(~np.isnan(bounds).any(axis=1))
        self.tree = RTree.bulk(bounds[rows], rows, capacity=capacity)

    def __len__(self) -> int:
        return len(self.geometries)

    def __repr__(self) -> str:
        return f"<GeoIndex of {len(self):,} geometries, crs {self.crs}>"

    def query(
        self,
        geometry: Any,
        predicate: str | None = None,
        sort: bool = False,
        distance: npt.ArrayLike | None = None,
        output_format: str = "indices",
    ) -> Any:
        """Return the rows whose boxes meet that of each geometry, or that fulfil a predicate.

        For one geometry an array (n,) of rows; for several (2, n): numbers of those asked with, and
        rows. The predicate is between the geometry asked with and that of the row, such as
        ``"contains"``; ``"dwithin"`` takes a `distance`, one or one a geometry. With
        `output_format` ``"dense"`` booleans, (rows,) or (rows, geometries).
        """
        _check_query(predicate, distance, output_format)
        asked, single = self._asked(geometry)
        bounds = _bounds(asked)
        reach = None
        if distance is not None:
            reach = np.broadcast_to(np.asarray(distance, np.float64), (len(asked),))
            bounds = _widened(bounds, reach)
        pairs = self._meeting(bounds)
        if predicate is not None:
            pairs = self._fulfilling(predicate, asked, pairs, reach)
        if output_format == "dense":
            return self._dense(pairs, len(asked), single)
        if sort:
            pairs = pairs[:, np.lexsort((pairs[1], pairs[0]))]
        return pairs[1] if single else pairs

    def nearest(
        self,
        geometry: Any,
        return_all: bool = True,
        max_distance: float | None = None,
        return_distance: bool = False,
        exclusive: bool = False,
    ) -> Any:
        """Return the nearest rows of each geometry, (2, n) as `query` does; all of equal distance.

        With `return_all` false one of them; with `exclusive` none that is equal to the geometry.
        Nothing for what is farther than `max_distance`. With `return_distance` the distances, too.
        """
        if max_distance is not None and not max_distance > 0:
            raise ValueError(f"max_distance is {max_distance}; it must be greater than 0")
        asked, _ = self._asked(geometry)
        reach = self._reach(asked, exclusive)
        if max_distance is not None:
            reach = np.fmin(reach, max_distance)
        pairs = self._meeting(_widened(_bounds(asked), reach))
        distances = self._distances(asked, pairs, exclusive)
        best = np.full(len(asked), np.inf)
        np.fmin.at(best, pairs[0], distances)
        if max_distance is not None:
            best = np.where(best <= max_distance, best, np.nan)
        chosen = distances == best[pairs[0]]
        pairs, distances = pairs[:, chosen], distances[chosen]
        order = np.lexsort((pairs[1], pairs[0]))
        pairs, distances = pairs[:, order], distances[order]
        if not return_all:
            _, first = np.unique(pairs[0], return_index=True)
            pairs, distances = pairs[:, first], distances[first]
        return (pairs, distances) if return_distance else pairs

    # ---- between boxes and geometries ------------------------------------------------------------

    def _asked(self, geometry: Any) -> tuple[npt.NDArray[Any], bool]:
        """Return the geometries asked with, and whether it is a single one."""
        theirs = getattr(geometry, "crs", None)
        if theirs is not None and self.crs is not None and theirs != self.crs:
            raise ValueError(
                f"the geometries have the reference system {theirs.to_string()}, the index has "
                f"{self.crs.to_string()}; convert them with to_crs(index.crs)"
            )
        shapely = _shapely()
        if geometry is None or isinstance(geometry, shapely.Geometry):
            return np.array([geometry], dtype=object), True
        return _geometries(geometry), False

    def _meeting(self, bounds: Floats) -> Indices:
        """Return the pairs whose boxes meet; nothing meets an empty geometry."""
        rows = np.flatnonzero(~np.isnan(bounds).any(axis=1))
        offsets, ids = self.tree.search_many(bounds[rows])
        counts = np.diff(offsets).astype(np.intp)
        pairs: Indices = np.vstack((np.repeat(rows, counts), ids.astype(np.intp)))
        return pairs

    def _fulfilling(
        self, predicate: str, asked: Any, pairs: Indices, reach: Floats | None
    ) -> Indices:
        shapely = _shapely()
        # Prepared geometries answer many questions fast; only those that were not stay so after.
        fresh = asked[~shapely.is_prepared(asked)]
        shapely.prepare(fresh)
        try:
            left, right = asked[pairs[0]], self.geometries[pairs[1]]
            more = () if reach is None else (reach[pairs[0]],)
            return pairs[:, getattr(shapely, predicate)(left, right, *more)]
        finally:
            shapely.destroy_prepared(fresh)

    def _dense(self, pairs: Indices, asked: int, single: bool) -> npt.NDArray[np.bool_]:
        dense = np.zeros((len(self), asked), dtype=bool)
        dense[pairs[1], pairs[0]] = True
        return dense[:, 0] if single else dense

    # ---- nearest ---------------------------------------------------------------------------------

    def _reach(self, asked: Any, exclusive: bool) -> Floats:
        """Return for each geometry a distance within which its nearest row is (NaN: there is none).

        Boxes are never farther than what is in them: so the geometries of the nearest boxes
        bound the distance of the nearest one.
        """
        reach = np.full(len(asked), np.nan)
        left = np.flatnonzero(~np.isnan(_bounds(asked)).any(axis=1))
        wanted = FIRST_CANDIDATES
        while len(left):
            near = [self.tree.nearest(*box, k=wanted) for box in _bounds(asked[left]).tolist()]
            counts = np.array([len(ids) for ids in near], dtype=np.intp)
            ids = np.array([id for ids in near for id in ids], dtype=np.intp)
            pairs = np.vstack((np.repeat(left, counts), ids))
            np.fmin.at(reach, pairs[0], self._distances(asked, pairs, exclusive))
            # Only where all of them were equal to the geometry itself is there more to look for.
            left = left[np.isnan(reach[left]) & (counts == wanted)]
            wanted *= 4
        return reach

    def _distances(self, asked: Any, pairs: Indices, exclusive: bool) -> Floats:
        shapely = _shapely()
        left, right = asked[pairs[0]], self.geometries[pairs[1]]
        distances = shapely.distance(left, right)
        return np.where(shapely.equals(left, right), np.nan, distances) if exclusive else distances


def _check_query(predicate: str | None, distance: Any, output_format: str) -> None:
    if predicate not in PREDICATES:
        known = ", ".join(map(repr, PREDICATES))
        raise ValueError(f"predicate is {predicate!r}; it must be one of {known}")
    if (predicate == "dwithin") != (distance is not None):
        raise ValueError("the predicate 'dwithin' takes a distance, and no other does")
    if output_format not in ("indices", "dense"):
        raise ValueError(f"output_format is {output_format!r}; it must be 'indices' or 'dense'")


def _shapely() -> Any:
    try:
        return importlib.import_module("shapely")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "geometries need shapely: pip install 'l5net[geo]'", name="shapely"
        ) from None


def _geometries(given: Any) -> npt.NDArray[Any]:
    """Return an array of shapely geometries from what may hold some."""
    series = getattr(given, "geometry", None)  # the active column of a frame, or a series itself
    array = np.asarray(given if series is None else series, dtype=object)
    if array.ndim != 1 or not bool(_shapely().is_valid_input(array).all()):
        raise TypeError(
            "wanted are geometries: a GeoDataFrame, a GeoSeries, or a one-dimensional array of "
            f"shapely geometries; this is a {type(given).__name__} of shape {array.shape}"
        )
    return array


def _bounds(geometries: Any) -> Floats:
    return np.ascontiguousarray(_shapely().bounds(geometries), dtype=np.float64).reshape(-1, 4)


def _widened(bounds: Floats, reach: Floats) -> Floats:
    """Return boxes that hold everything within reach, however sums are rounded."""
    low = np.nextafter(bounds[:, :2] - reach[:, np.newaxis], -np.inf)
    high = np.nextafter(bounds[:, 2:] + reach[:, np.newaxis], np.inf)
    return np.ascontiguousarray(np.hstack((low, high)))
