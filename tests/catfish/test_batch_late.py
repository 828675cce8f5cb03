"""Batches whose server is late: the client takes over, by a scripted clock and scripted sides.

The clock goes on by what is searched here, and a bit with every look at it; the server does one
part after the other, but not while it is held back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l5
from catfish_app import OffloadingClient, RTree, RTreeClient
from catfish_app._batch import Batch, Found
from catfish_app._paces import Pace, Paces
from tests.catfish._support import WAYS, boxes, served, sorted_ids
from tests.catfish.test_batch import EveryThird, answer, numbered

NEVER = float("inf")
LOOK_S = 5e-6


@attrs.define(eq=False)
class World:
    """A clock, a client and a server."""

    ours_s: float
    theirs_s: float
    part_s: float = 20e-6
    """What each part takes here, whatever its size."""
    held_back: list[tuple[float, float]] = attrs.field(factory=list[tuple[float, float]])
    """When the server does nothing, from when to when."""
    fails_at: float = NEVER
    disturbed: bool = False
    stubborn: bool = False
    """A request that is cancelled is answered all the same."""
    beaten: bool = False
    """While something is taken over, the server answers."""
    time: float = 0.0
    free_at: float = 0.0
    under_way: int = 0
    dropped: int = 0
    searched: int = 0
    asked: list[int] = attrs.field(factory=list[int])

    def now(self) -> float:
        self.time += LOOK_S
        return self.time

    def _search(self, rows: np.ndarray) -> Found:
        self.time += self.part_s + len(rows) * self.ours_s
        self.searched += len(rows)
        return answer(rows)

    async def here(self, rows: np.ndarray, first: int) -> Found:
        assert rows[0, 0] == first
        return self._search(rows)

    async def instead(self, rows: np.ndarray, first: int) -> Found | None:
        assert rows[0, 0] == first and self.under_way
        while self.beaten and self.under_way:
            await anyio.lowlevel.checkpoint()
        return None if self.disturbed else self._search(rows)

    def _done_at(self, took_s: float) -> float:
        at = max(self.time, self.free_at)
        for begin, end in self.held_back:
            if at < end and at + took_s > begin:
                took_s -= max(0.0, begin - at)
                at = end
        return at + took_s

    async def ask(self, rows: np.ndarray, first: int) -> Found:
        assert rows[0, 0] == first
        self.asked.append(len(rows))
        done_at = self.free_at = self._done_at(len(rows) * self.theirs_s)
        self.under_way += 1
        try:
            with anyio.CancelScope(shield=self.stubborn):
                while self.now() < done_at:
                    if self.time >= self.fails_at:
                        raise LookupError("the server's own")
                    await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.dropped += 1
            raise
        finally:
            self.under_way -= 1
        return answer(rows)


def known(ours_s: float, theirs_s: float) -> Paces:
    return Paces(Pace(ours_s, 1.0), Pace(theirs_s, 1.0))


def as_wanted(found: Found, count: int) -> None:
    offsets, ids = answer(numbered(count))
    assert found[0].tolist() == offsets.tolist() and found[1].tolist() == ids.tolist()


async def searched(world: World, count: int, paces: Paces) -> Batch:
    """Search a batch; all is found, in order, and nothing is under way any more."""
    batch = Batch(numbered(count), world, paces, now=world.now)
    with anyio.fail_after(60):
        as_wanted(await batch.search(), count)
    assert world.under_way == 0
    return batch


@pytest.mark.anyio
async def test_a_server_that_is_held_back_keeps_nobody_waiting() -> None:
    """Half of the batch is the server's, and it does nothing for a second."""
    world = World(1e-6, 1e-6, held_back=[(0.0, 1.0)])
    batch = await searched(world, 4000, known(1e-6, 1e-6))
    assert batch.taken_over == sum(world.asked) > 1000
    assert world.searched == 4000 and world.dropped == len(world.asked)
    assert world.time < 2.5 * 4000e-6
    assert batch.paces.theirs.row_s > 1e-6  # and the next batch leaves it less


@pytest.mark.anyio
async def test_an_answer_that_comes_while_its_part_is_taken_over_counts() -> None:
    """The server is held back until the client has begun with the part, not until it is done."""
    world = World(1e-6, 1e-6, held_back=[(0.0, 2.4e-3)])
    batch = await searched(world, 4000, known(1e-6, 1e-6))
    assert batch.taken_over < sum(world.asked)
    assert 4000 - sum(world.asked) < world.searched < 4000


@pytest.mark.anyio
async def test_an_answer_to_a_request_that_was_dropped_is_dropped() -> None:
    world = World(1e-6, 1e-6, held_back=[(0.0, 20e-3)], stubborn=True)
    batch = await searched(world, 4000, known(1e-6, 1e-6))
    assert world.searched == 4000 and batch.taken_over == sum(world.asked)
    assert world.dropped == 0 and world.time > 20e-3


@pytest.mark.anyio
async def test_what_was_answered_while_its_last_bit_was_taken_over_is_done_once() -> None:
    """All is the server's, and little enough to be taken over in one bit."""
    world = World(1e-6, 1e-6, held_back=[(0.0, 3e-3)], beaten=True)
    batch = Batch(numbered(60), world, known(1e-6, 1e-6), now=world.now)
    batch.paces.trial = batch.paces.theirs
    with anyio.fail_after(60):
        as_wanted(await batch.search(), 60)
    assert batch.taken_over == 0 and world.searched > 0


@pytest.mark.anyio
async def test_who_cannot_search_instead_waits_for_the_server() -> None:
    world = World(1e-6, 1e-6, held_back=[(0.0, 10e-3)], disturbed=True)
    batch = await searched(world, 4000, known(1e-6, 1e-6))
    assert batch.taken_over == world.dropped == 0 and world.time > 10e-3


@pytest.mark.anyio
async def test_what_the_server_says_while_the_client_takes_over_is_raised() -> None:
    world = World(1e-6, 1e-6, held_back=[(0.0, 1.0)], fails_at=2.2e-3)
    with pytest.raises(LookupError, match="the server's own"):
        await searched(world, 8000, known(1e-6, 1e-6))
    assert world.under_way == 0 and 0 < world.searched < 8000


@pytest.mark.anyio
async def test_a_slow_client_waits_for_a_server_that_is_late_by_less() -> None:
    """To search one row takes a tenth of a second here."""
    world = World(0.1, 1e-6, held_back=[(0.0, 9e-3)])
    batch = await searched(world, 900, known(0.1, 1e-6))
    assert world.searched == batch.taken_over == 0
    assert world.asked == [900]


@pytest.mark.anyio
async def test_cancelled_nothing_is_under_way() -> None:
    world = World(1e-6, 1e-6, held_back=[(0.0, NEVER)], disturbed=True)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                while world.searched < 2000:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            tasks.start_soon(cancel)
            await Batch(numbered(4000), world, known(1e-6, 1e-6), now=world.now).search()
    assert scope.cancelled_caught and world.under_way == 0 and world.dropped > 0


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3000),
    ours_s=st.sampled_from([1e-7, 1e-6, 20e-6]),
    theirs_s=st.sampled_from([1e-7, 1e-6, 20e-6]),
    believed=st.sampled_from(["nothing", "true", "ours is quick", "theirs is quick"]),
    pauses=st.lists(st.tuples(st.floats(0, 3e-3), st.floats(0, 5e-3)), max_size=4),
    disturbed=st.booleans(),
    trial=st.sampled_from(["", "ours", "theirs"]),
)
def test_all_is_found_in_order_whatever_the_sides_do(
    count: int,
    ours_s: float,
    theirs_s: float,
    believed: str,
    pauses: list[tuple[float, float]],
    disturbed: bool,
    trial: str,
) -> None:
    paces: dict[str, Callable[[], Paces]] = {
        "nothing": Paces,
        "true": lambda: known(ours_s, theirs_s),
        "ours is quick": lambda: known(1e-7, 1e-3),
        "theirs is quick": lambda: known(1e-3, 1e-7),
    }
    held_back: list[tuple[float, float]] = []
    for gap, lasts in pauses:
        begin = gap + (held_back[-1][1] if held_back else 0.0)
        held_back.append((begin, begin + lasts))

    async def main() -> None:
        world = World(ours_s, theirs_s, held_back=held_back, disturbed=disturbed)
        both = paces[believed]()
        for _ in range(2):  # what has been learnt is made use of
            if trial:
                both.trial = both.ours if trial == "ours" else both.theirs
            await searched(world, count, both)
            world.free_at = min(world.free_at, world.time)  # a request that was dropped is none

    anyio.run(main)


@pytest.mark.anyio
async def test_a_request_that_stays_away_is_dropped_and_rows_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real connection, whose server answers nothing while the batch lasts."""
    tree, asked = RTree.bulk(boxes(2000), shared=True), list[int]()

    async def never(self: RTreeClient, rows: Any) -> Any:
        asked.append(len(rows))
        await anyio.sleep_forever()

    async with served(tmp_path, tree) as (_, server):
        url = server.urls[0] + WAYS["shm from unix"][1]
        async with await RTreeClient.connect(url, policy=EveryThird()) as client:
            assert isinstance(client, OffloadingClient)
            await client.open()
            monkeypatch.setattr(RTreeClient, "search_many", never)
            queries = boxes(3000, seed=2, edge=0.05)
            with anyio.fail_after(60):
                offsets, ids = await client.search_many(queries)
            wanted_offsets, wanted = tree.search_many(queries)
            assert offsets.tolist() == wanted_offsets.tolist()
            assert sorted_ids(ids) == sorted_ids(wanted)
            seen = client.statistics()
            assert (seen.client, seen.server) == (3000, 0) and asked
            policy = client.policy
            assert isinstance(policy, EveryThird) and policy.asked == policy.done == 16
            assert l5.Path.CLIENT in policy.told


@pytest.mark.anyio
async def test_requests_that_were_dropped_disturb_no_other(tmp_path: Path) -> None:
    """Each batch takes over what it asked for just now; the answers come, and are nobody's."""
    tree = RTree.bulk(boxes(2000), shared=True)
    async with served(tmp_path, tree) as (_, server):
        async with await RTreeClient.connect(server.urls[0], policy=EveryThird()) as client:
            assert isinstance(client, OffloadingClient)
            await client.open()
            queries = boxes(1500, seed=3, edge=0.05)
            wanted = tree.search_many(queries)
            for _ in range(20):
                # A row takes no time here: what the server is asked for is late very soon.
                client._paces = known(1e-9, 2e-9)
                client._paces.trial = client._paces.theirs
                offsets, ids = await client.search_many(queries)
                assert offsets.tolist() == wanted[0].tolist()
                assert sorted_ids(ids) == sorted_ids(wanted[1])
            assert len(await client.search(queries[0])) == int(wanted[0][1])
