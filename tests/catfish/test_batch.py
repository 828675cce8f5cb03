"""Batches of searches that the server and its client share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import anyio
import attrs
import numpy as np
import pytest

import l5
from catfish_app import OffloadingClient, RTree, RTreeClient
from catfish_app._batch import Batch, Found, Search, Undone, in_turns
from catfish_app._direct import Disturbed
from catfish_app._paces import TURN_S, Pace, Paces
from catfish_app._sharing import BatchSides
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
async def test_both_do_their_part_and_the_answers_are_in_order(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(self: BatchSides, rows: np.ndarray, first: int) -> None:
        """Take nothing over: the server is in this process, and may be late."""

    monkeypatch.setattr(BatchSides, "instead", none)
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
            assert seen.client + seen.server == count
            assert seen.server > 0
            assert policy.asked == policy.done == min(count, 16)
            if count >= 900:
                assert seen.client > 0
                assert {CLIENT, SERVER} == set(policy.told)


@pytest.mark.parametrize("known", [False, True])
async def test_a_batch_of_no_rows(known: bool, tmp_path: Path) -> None:
    async with served(tmp_path, RTree.bulk(boxes(300), shared=True), WAY) as (_, server):
        async with await RTreeClient.connect(server.urls[0]) as client:
            assert isinstance(client, OffloadingClient)
            if known:
                await client.open()
                client._paces = Paces(Pace(1e-3, 1000), Pace(1e-3, 1000))  # pyright: ignore[reportPrivateUsage]
            offsets, ids = await client.search_many(np.empty((0, 4)))
            assert (offsets.tolist(), ids.tolist()) == ([0], [])


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
            assert (seen.client, seen.server) == (0, 90)
            assert 0 < seen.disturbed < 90
            policy = client.policy
            assert isinstance(policy, EveryThird)
            assert policy.asked == policy.done == 16


def answer(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the number that a row bears, once, twice or not at all."""
    numbers = rows[:, 0].astype(np.uint64)
    counts = numbers % np.uint64(3)
    return np.cumsum(np.append(0, counts)).astype(np.uint64), np.repeat(numbers, counts.astype(int))


def numbered(count: int) -> np.ndarray:
    return np.repeat(np.arange(count, dtype=np.float64)[:, None], 4, axis=1)


@attrs.frozen
class Two:
    """Two functions as the sides of a batch."""

    here_: Search
    ask_: Search

    async def here(self, rows: np.ndarray, first: int) -> Found:
        return await self.here_(rows)

    async def ask(self, rows: np.ndarray, first: int) -> Found:
        return await self.ask_(rows)

    async def instead(self, rows: np.ndarray, first: int) -> Found | None:
        return None


async def from_both_ends(rows: np.ndarray, here: Search, ask: Search, paces: Paces) -> Found:
    return await Batch(rows, Two(here, ask), paces).search()


async def test_requests_are_sent_before_the_client_searches_and_while_it_does() -> None:
    """The server answers when the client has searched for a while: another request follows then."""
    happened: list[str] = []
    sent = 0

    async def ask(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal sent
        happened.append("sent")
        sent += 1
        await anyio.lowlevel.checkpoint()
        return answer(rows)

    async def here(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        happened.append("searched")
        return answer(rows)

    with anyio.fail_after(60):
        await from_both_ends(numbered(2000), here, ask, Paces())
    assert happened[:2] == ["sent", "sent"]
    first = happened.index("searched")
    assert "sent" in happened[first:]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
async def test_all_rows_are_searched_once_and_answers_are_in_order(count: int) -> None:
    seen: list[int] = []

    async def search(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.extend(rows[:, 0].astype(int).tolist())
        await anyio.lowlevel.checkpoint()
        return answer(rows)

    offsets, ids = await from_both_ends(numbered(count), search, search, Paces())
    assert sorted(seen) == list(range(count))
    wanted = answer(numbered(count))
    assert offsets.tolist() == wanted[0].tolist() and ids.tolist() == wanted[1].tolist()


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "ours"), [(1e-6, 1e-6, 1000), (4e-6, 1e-6, 400), (1e-6, 4e-6, 1600)]
)
async def test_both_do_as_much_as_they_can(ours_s: float, theirs_s: float, ours: int) -> None:
    """By what is known of them; nothing is measured here, for they take no time at all."""
    done = {"here": 0, "there": 0}
    workers = {side: anyio.Lock() for side in done}

    class Known(Pace):
        def note(self, seconds: float, rows: int) -> None: ...

    async def search(side: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        done[side] += len(rows)
        steps = len(rows) * (ours_s if side == "here" else theirs_s) * 1e6
        async with workers[side]:
            for _ in range(round(steps)):
                await anyio.lowlevel.checkpoint()
        return answer(rows)

    await from_both_ends(
        numbered(2000),
        lambda rows: search("here", rows),
        lambda rows: search("there", rows),
        Paces(Known(ours_s, 1.0), Known(theirs_s, 1.0)),
    )
    assert sum(done.values()) == 2000
    assert 0.6 * ours < done["here"] < 1.25 * ours


async def test_who_is_too_slow_for_a_row_does_none() -> None:
    """The server answers all in the time that one row would take here: it is asked once."""
    asked: list[int] = []

    async def here(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError

    async def ask(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(rows))
        return answer(rows)

    await from_both_ends(numbered(2000), here, ask, Paces(Pace(1.0, 1e3), Pace(1.0, 1e7)))
    assert asked == [2000]


async def test_who_fails_ends_both() -> None:
    async def never(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        await anyio.sleep_forever()
        raise AssertionError

    async def fail(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise LookupError("this one")

    with anyio.fail_after(60):
        with pytest.raises(LookupError, match="this one"):
            await from_both_ends(numbered(50), never, fail, Paces())
        with pytest.raises(LookupError, match="this one"):
            await from_both_ends(numbered(50), fail, never, Paces())


def test_no_row_is_taken_twice() -> None:
    undone = Undone(0, 10)
    assert (undone.front(4), undone.back(3)) == (slice(0, 4), slice(7, 10))
    assert (undone.back(9), undone.front(9)) == (slice(4, 7), slice(4, 4))


def test_what_waits_for_the_end_of_a_period_counts_in_full() -> None:
    """Nine parts take 0.1 ms each and the tenth nine: 1 ms on average, whichever was last."""
    pace = Pace()
    for part in range(1000):
        pace.note(9.1e-3 if part % 10 == 9 else 0.1e-3, 100)
    found = pace.row_s
    assert 1.0e-5 < found < 1.5e-5
    for _ in range(9):
        pace.note(0.1e-3, 100)
    assert 0.6e-5 < pace.row_s < found


async def test_others_have_a_turn_meanwhile() -> None:
    turns: list[int] = []
    clock = [0.0]

    async def search(rows: np.ndarray) -> Found:
        turns.append(len(rows))
        clock[0] += len(rows) * row_s
        return np.arange(len(rows) + 1, dtype=np.uint64), np.full(len(rows), 7, np.uint64)

    row_s = TURN_S / 256
    offsets, ids = await in_turns(search, np.zeros((600, 4)), now=lambda: clock[0])
    assert turns == [256, 256, 88]
    assert offsets.tolist() == list(range(601)) and ids.tolist() == [7] * 600
    turns.clear()
    row_s = TURN_S / 2000
    await in_turns(search, np.zeros((6000, 4)), now=lambda: clock[0])
    assert turns == [256, 512, 1024, 1024, 1024, 1024, 1024, 112]
