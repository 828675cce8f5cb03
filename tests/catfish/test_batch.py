"""Batches of searches that the server and its client share."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path

import anyio
import numpy as np
import pytest

import l5
from catfish_app import OffloadingClient, RTree, RTreeClient
from catfish_app._batch import Split, at_once, in_turns, merged, split
from catfish_app._direct import Disturbed
from tests.catfish._support import WAYS, boxes, served, sorted_ids

pytestmark = pytest.mark.anyio
WAY = "shm from unix"
SERVER, CLIENT = l5.Path.SERVER, l5.Path.CLIENT


class EveryThird:
    """Leaves every third request to the client; remembers what it was told."""

    def __init__(self) -> None:
        self.asked = 0
        self.told: list[l5.Path] = []
        self.done = 0

    def choose(self, now: float) -> l5.Path:
        self.asked += 1
        return CLIENT if self.asked % 3 == 0 else SERVER

    def observe(
        self, path: l5.Path, latency_s: float, now: float, reads: int = 0, requests: int = 1
    ) -> None:
        assert latency_s > 0.0
        self.told.append(path)
        self.done += requests

    def heartbeat(self, busy_share: float, sequence: int, now: float) -> None:
        pass


async def connected(url: str, policy: EveryThird) -> OffloadingClient:
    client = await RTreeClient.connect(url + WAYS[WAY][1], policy=policy)
    assert isinstance(client, OffloadingClient)
    return client


@pytest.mark.parametrize("count", [2, 3, 900, 6000])
async def test_both_do_their_part_and_the_answers_are_in_order(count: int, tmp_path: Path) -> None:
    tree, policy = RTree.bulk(boxes(2000), shared=True), EveryThird()
    async with served(tmp_path, tree, WAY) as (_, server):
        async with await connected(server.urls[0], policy) as client:
            queries = boxes(count, seed=2, edge=0.05)
            offsets, ids = await client.search_many(queries)
            wanted_offsets, wanted = tree.search_many(queries)
            assert offsets.tolist() == wanted_offsets.tolist()
            ends = offsets.tolist()
            for begin, end in pairwise(ends):
                assert sorted_ids(ids[begin:end]) == sorted_ids(wanted[begin:end])
            seen = client.statistics()
            assert (seen.client, seen.server) == (count // 3, count - count // 3)
            assert policy.asked == policy.done == count
            assert policy.told.count(CLIENT) == (1 if count >= 3 else 0)


async def test_rows_are_named_by_their_place_in_the_batch(tmp_path: Path) -> None:
    queries = boxes(30)
    queries[23] = (3, 0, 2, 0)
    async with served(tmp_path, RTree.bulk(boxes(30), shared=True), WAY) as (_, server):
        async with await connected(server.urls[0], EveryThird()) as client:
            with pytest.raises(ValueError, match="row 23: not a valid query"):
                await client.search_many(queries)
            assert client.policy.asked == client.policy.done  # type: ignore[attr-defined]
            empty = await client.search_many(np.empty((0, 4)))
            assert [array.tolist() for array in empty] == [[0], []]


async def test_the_server_answers_what_writers_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, queries = RTree.bulk(boxes(500), shared=True), boxes(90, seed=2, edge=0.1)
    async with served(tmp_path, tree, WAY) as (_, server):
        async with await connected(server.urls[0], EveryThird()) as client:
            await client.open()

            async def disturbed(rects: object) -> None:
                raise Disturbed

            monkeypatch.setattr(client._tree, "search_many", disturbed)  # pyright: ignore[reportPrivateUsage]
            offsets, _ = await client.search_many(queries)
            assert offsets.tolist() == tree.search_many(queries)[0].tolist()
            seen = client.statistics()
            assert (seen.client, seen.server, seen.disturbed) == (0, 90, 30)


async def test_the_request_is_sent_before_the_client_searches() -> None:
    happened: list[str] = []

    async def ask() -> None:
        happened.append("sent")
        await answered.wait()
        happened.append("answered")

    async def here() -> None:
        happened.append("searched")
        answered.set()

    answered = anyio.Event()
    with anyio.fail_after(60):
        await at_once(ask, here)
    assert happened == ["sent", "searched", "answered"]


async def test_who_fails_ends_both() -> None:
    async def never() -> None:
        await anyio.sleep_forever()

    async def fail() -> None:
        raise LookupError("this one")

    with anyio.fail_after(60):
        with pytest.raises(LookupError, match="this one"):
            await at_once(never, fail)
        with pytest.raises(LookupError, match="this one"):
            await at_once(fail, never)


async def test_others_have_a_turn_meanwhile() -> None:
    turns: list[int] = []

    async def search(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turns.append(len(rows))
        return np.arange(len(rows) + 1, dtype=np.uint64), np.full(len(rows), 7, np.uint64)

    offsets, ids = await in_turns(search, np.zeros((600, 4)))
    assert turns == [256, 256, 88]
    assert offsets.tolist() == list(range(601)) and ids.tolist() == [7] * 600


def test_answers_of_all_lengths_are_merged() -> None:
    answers = [[], [1, 2], [3], [], [4, 5, 6], [7]]
    ways = iter([False, True, False, True, True, False])
    rows = split(6, lambda: next(ways))
    assert (rows.theirs.tolist(), rows.ours.tolist()) == ([0, 2, 5], [1, 3, 4])

    def found(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
        parts = [answers[number] for number in numbers]
        offsets = np.cumsum([0, *map(len, parts)]).astype(np.uint64)
        return offsets, np.array([*chain(*parts)], np.uint64)

    both = merged(Split(rows.theirs, rows.ours), found([0, 2, 5]), found([1, 3, 4]))
    assert both[0].tolist() == [0, 0, 2, 3, 3, 6, 7] and both[1].tolist() == list(range(1, 8))
