"""The demo's data, served: the same answers as shapely's STRtree."""

from pathlib import Path

import numpy as np
import pytest
import shapely

from catfish_app import RTree
from catfish_app._data import demo_segments
from catfish_app._measure import make_windows
from tests.catfish._support import served, sorted_ids

pytestmark = pytest.mark.anyio
QUERIES = 400
WORLD = (-180.0, -90.0, 180.0, 90.0)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_same_answers_as_shapely(anyio_backend: str, tmp_path: Path) -> None:
    segments = demo_segments()
    queries = np.array(make_windows(WORLD, segments, QUERIES, seed=3, edges=(1e-6, 0.02)))
    index = shapely.STRtree(shapely.box(*segments.T))
    query_of, ids = index.query(shapely.box(*queries.T))
    wanted = [np.sort(ids[query_of == row]).tolist() for row in range(QUERIES)]
    assert sum(map(len, wanted)) > 10_000

    async with served(tmp_path, RTree(capacity=len(segments)), workers=2) as (tree, _):
        assert await tree.load(segments)
        for query, answer in zip(queries.tolist(), wanted, strict=True):
            assert sorted_ids(await tree.search(query)) == answer
        offsets, found = await tree.search_many(queries)
        for row, answer in enumerate(wanted):
            assert sorted_ids(found[offsets[row] : offsets[row + 1]]) == answer
        pieces_seen, count = 0, 0
        async with tree.search_iter(WORLD) as pieces:
            async for piece in pieces:
                pieces_seen += 1
                count += len(piece)
        assert count == len(segments) and pieces_seen > 20
