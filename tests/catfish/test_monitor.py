"""The monitor: rates from counters, and which path served its searches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import l5
from catfish_app import RTree
from catfish_app._monitor import Monitor, mode_of, path_of
from tests.catfish._support import boxes, served

pytestmark = pytest.mark.anyio


async def test_samples(tmp_path: Path) -> None:
    async with served(tmp_path, RTree.bulk(boxes(2000), capacity=3000)) as (client, server):
        monitor = Monitor(client, probes=5)
        await monitor.start()
        first = await monitor.sample()
        assert first.paths == {"server": 5} and first.requests_per_s["search"] > 0
        assert first.entries == 2000 and first.height == server.tree.stats().height
        assert first.p50_us is not None and first.max_us is not None
        assert 0 < first.p50_us <= first.max_us
        for row in range(50):
            await client.insert((0.0, 0.0, 1.0, 1.0), row)
        second = await monitor.sample()
        assert second.entries == 2050 and list(monitor.history) == [first, second]
        # Work is what clients want, not what is asked about the server.
        assert second.rate == pytest.approx(
            sum(second.requests_per_s[name] for name in ("search", "insert"))
        )
        per_search = second.requests_per_s["insert"] / second.requests_per_s["search"]
        assert per_search == pytest.approx(10)


async def test_an_empty_tree_has_no_latency(tmp_path: Path) -> None:
    async with served(tmp_path, RTree(capacity=10)) as (client, _):
        sample = await Monitor(client).sample()
        assert (sample.paths, sample.p50_us, sample.max_us) == ({}, None, None)


async def test_who_searches_by_itself() -> None:
    client: Any = SimpleNamespace(mode="adaptive", last_search=None)
    assert (mode_of(client), path_of(client)) == ("adaptive", "server")
    client.last_search = SimpleNamespace(path=l5.Path.CLIENT)
    assert path_of(client) == "client"
