"""The demo's data: the same answers as shapely's STRtree for 10,000 random queries."""

import numpy as np
import pytest
import shapely

from catfish_app._data import demo_segments
from catfish_app._rtree import RTree

QUERIES = 10_000


@pytest.fixture(scope="module")
def segments() -> np.ndarray:
    rows = demo_segments()
    assert rows.shape == (472_660, 4)
    return rows


def random_queries(segments: np.ndarray) -> np.ndarray:
    """Boxes around random places of the data and of the map, from a point to some ten degrees."""
    random = np.random.default_rng(20)
    somewhere = random.uniform([-180, -90], [180, 90], (QUERIES // 2, 2))
    at_data = segments[random.integers(len(segments), size=QUERIES - QUERIES // 2), :2]
    low = np.vstack([somewhere, at_data])
    size = 10 ** random.uniform(-6, 1, (QUERIES, 1)) * random.random((QUERIES, 2))
    size[::50] = 0
    return np.hstack([low, low + size])


def by_shapely(segments: np.ndarray, queries: np.ndarray) -> list[np.ndarray]:
    index = shapely.STRtree(shapely.box(*segments.T))
    query_of, ids = index.query(shapely.box(*queries.T))
    order = np.lexsort((ids, query_of))
    cuts = np.searchsorted(query_of[order], np.arange(1, len(queries)))
    return np.split(ids[order], cuts)


@pytest.mark.parametrize("how", ["packed", "inserted"])
def test_same_answers_as_shapely(segments: np.ndarray, how: str) -> None:
    if how == "packed":
        tree = RTree.bulk(segments)
    else:
        tree = RTree(capacity=len(segments))
        tree.insert_many(segments)
    tree.check()
    queries = random_queries(segments)
    wanted = by_shapely(segments, queries)
    offsets, ids = tree.search_many(queries)
    assert len(ids) == sum(map(len, wanted)) > 100_000
    for i, expected in enumerate(wanted):
        found = np.sort(ids[offsets[i] : offsets[i + 1]])
        assert np.array_equal(found, expected.astype(np.uint64)), queries[i]
