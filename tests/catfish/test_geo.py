"""The bridge to geopandas: the same questions, the same answers, the same shapes."""

from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely

from catfish_app import RTree, from_geodataframe
from catfish_app._geo import PREDICATES

RANDOM = np.random.default_rng(11)


def shapes(count: int, seed: int) -> list[Any]:
    """Points, lines, polygons with holes, many on a grid so that they touch and are equal."""
    random = np.random.default_rng(seed)
    made: list[Any] = []
    for number in range(count):
        x, y = random.integers(0, 40, 2) / 2
        size = float(random.integers(1, 6)) / 2
        kinds = [
            lambda x, y, size: shapely.Point(x, y),
            lambda x, y, size: shapely.LineString([(x, y), (x + size, y + size)]),
            lambda x, y, size: shapely.box(x, y, x + size, y + size),
            lambda x, y, size: shapely.Point(x, y).buffer(size),
            lambda x, y, size: shapely.box(x, y, x + size, y + size).difference(
                shapely.box(x + size / 4, y + size / 4, x + size / 2, y + size / 2)
            ),
        ]
        made.append(kinds[number % len(kinds)](x, y, size))
    return made


@pytest.fixture(scope="module")
def frame() -> Any:
    geometries = [*shapes(400, 1), None, shapely.Point(), shapely.Polygon()]
    return geopandas.GeoDataFrame({"n": range(len(geometries))}, geometry=geometries, crs=4326)


@pytest.fixture(scope="module")
def asked() -> Any:
    return geopandas.GeoSeries([*shapes(60, 2), None, shapely.Polygon()], crs=4326)


def same(ours: Any, theirs: Any) -> None:
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("predicate", PREDICATES, ids=str)
def test_query_is_that_of_geopandas(frame: Any, asked: Any, predicate: str | None) -> None:
    index, peer = from_geodataframe(frame), frame.sindex
    assert set(PREDICATES) == set(peer.valid_query_predicates)
    distances: list[Any] = [None]
    if predicate == "dwithin":
        distances = [0, 0.75, np.linspace(0, 2, len(asked))]
    for distance in distances:
        more = {"predicate": predicate, "distance": distance}
        wanted = peer.query(asked, sort=True, **more)
        assert wanted.shape[1] > 10
        same(index.query(asked, sort=True, **more), wanted)
        same(index.query(asked.to_numpy(), sort=True, **more), wanted)
        same(
            index.query(asked, output_format="dense", **more),
            peer.query(asked, output_format="dense", **more),
        )
        unsorted = index.query(asked, **more)
        assert sorted(map(tuple, unsorted.T)) == sorted(map(tuple, wanted.T))
        if np.ndim(distance) == 0:
            for one in [*asked[:12], None, shapely.Polygon()]:
                same(index.query(one, sort=True, **more), peer.query(one, sort=True, **more))
            same(
                index.query(asked[3], output_format="dense", **more),
                peer.query(asked[3], output_format="dense", **more),
            )
    assert not shapely.is_prepared(asked.to_numpy()).any()


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("max_distance", [None, 0.25, 1.0])
def test_nearest_is_that_of_geopandas(
    frame: Any, asked: Any, exclusive: bool, max_distance: float | None
) -> None:
    index, peer = from_geodataframe(frame), frame.sindex
    far = geopandas.GeoSeries([shapely.Point(100, 3), shapely.box(-9, -9, -8, -8)], crs=4326)
    for series in (asked, far, frame.geometry):
        more = {"exclusive": exclusive, "max_distance": max_distance, "return_distance": True}
        (ours, distances), (theirs, wanted) = (
            index.nearest(series, **more),
            peer.nearest(series, **more),
        )
        order = np.lexsort((theirs[1], theirs[0]))
        same(ours, theirs[:, order])
        same(distances, wanted[order])
        single, first = index.nearest(series, return_all=False, **more)
        assert single[0].tolist() == sorted(set(theirs[0].tolist()))
        assert first.tolist() == [wanted[theirs[0] == row][0] for row in single[0]]
    same(index.nearest(far[0]), peer.nearest(far[0]))


def test_many_that_are_equal_to_what_is_asked() -> None:
    points = [shapely.Point(1, 1)] * 30 + [shapely.Point(2, 1)]
    index = from_geodataframe(np.array(points, dtype=object))
    assert index.nearest(points[0], exclusive=True).tolist() == [[0], [30]]
    assert index.nearest(points[:1]).shape == (2, 30)
    alone = from_geodataframe(np.array(points[:30], dtype=object))
    assert alone.nearest(points[0], exclusive=True).shape == (2, 0)


def test_nothing_in_the_index() -> None:
    for empty in (geopandas.GeoSeries([]), geopandas.GeoSeries([None, shapely.Point()])):
        index = from_geodataframe(empty)
        assert index.query(shapely.box(0, 0, 1, 1)).tolist() == []
        assert index.query([shapely.box(0, 0, 1, 1)]).shape == (2, 0)
        assert index.nearest(shapely.Point(0, 0)).shape == (2, 0)
        assert len(index) == len(empty)


def test_the_tree_is_one_like_any_other(frame: Any, tmp_path: Path) -> None:
    index = from_geodataframe(frame, capacity=1000)
    index.tree.save(tmp_path / "frame.snapshot")
    again = RTree.open(tmp_path / "frame.snapshot")
    box = (3.0, 3.0, 6.0, 6.0)
    assert sorted(again.search(*box)) == index.query(shapely.box(*box), sort=True).tolist()


def test_what_is_refused(frame: Any, asked: Any) -> None:
    index = from_geodataframe(frame)
    with pytest.raises(ValueError, match=r"EPSG:3857.*EPSG:4326.*to_crs"):
        index.query(asked.to_crs(3857))
    with pytest.raises(ValueError, match=r"predicate is 'meets'.*'contains'"):
        index.query(asked, "meets")
    with pytest.raises(ValueError, match="dwithin"):
        index.query(asked, "dwithin")
    with pytest.raises(ValueError, match="no other"):
        index.query(asked, "within", distance=1)
    with pytest.raises(ValueError, match=r"'sparse'.*'dense'"):
        index.query(asked, output_format="sparse")
    with pytest.raises(ValueError, match="greater than 0"):
        index.nearest(asked, max_distance=0)
    for nonsense in (np.arange(3), "POINT (1 1)", np.array([["a"]], dtype=object)):
        with pytest.raises(TypeError, match="wanted are geometries"):
            index.query(nonsense)
