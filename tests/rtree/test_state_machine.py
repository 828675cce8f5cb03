"""The tree against a list, by Hypothesis: any operations, in an arena that fills up."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from catfish_app._rtree import RTree, TreeFull
from tests.rtree._model import ListTree, Rect

# Few distinct values, so that edges touch and rectangles repeat; some that single precision cannot
# tell apart, some huge, some tiny, both zeros.
SPECIAL = [0.0, -0.0, 1.0, 1.0 + 2**-40, 1.0 + 2**-52, 1e-300, -1e-310, 1e300, -1.7e308, 16777217.0]
COORDINATES = st.one_of(
    st.integers(0, 12).map(float),
    st.floats(0, 12, width=32),
    st.sampled_from(SPECIAL),
)
IDS = st.one_of(st.integers(0, 5), st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]))


@st.composite
def rects(draw: st.DrawFn) -> Rect:
    x = sorted((draw(COORDINATES), draw(COORDINATES)))
    y = sorted((draw(COORDINATES), draw(COORDINATES)))
    return (x[0], y[0], x[1], y[1])


def scattered(seed: int, count: int, spread: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    low = random.random((count, 2)) * spread
    return np.hstack([low, low + random.random((count, 2)) * random.choice([0, 0.1, spread])])


class TreeAndList(RuleBasedStateMachine):
    """RTree and ListTree do the same; after every step the tree's invariants hold."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ListTree()
        self.tree = RTree(capacity=1)
        self.next_id = 100

    @initialize(
        capacity=st.sampled_from([1, 40, 400, 4000]),
        kernel=st.sampled_from(["portable", None]),
        packed=st.sampled_from([0, 1, 21, 22, 300, 1200]),
        fill=st.sampled_from([0.75, 0.9, 1.0]),
        offset=st.sampled_from([0.0, 1.7e9, -1e15]),
    )
    def start(
        self, capacity: int, kernel: str | None, packed: int, fill: float, offset: float
    ) -> None:
        rows = scattered(packed, packed, 12.0) + offset
        self.tree = RTree.bulk(rows, capacity=capacity, fill=fill)
        if kernel:
            self.tree.use_kernel(kernel)
        self.model.entries = [(tuple(row), i) for i, row in enumerate(rows.tolist())]

    @rule(rect=rects(), number=IDS)
    def insert(self, rect: Rect, number: int) -> None:
        try:
            self.tree.insert(*rect, number)
        except TreeFull:
            assert self.tree.stats().free_nodes < 13
        else:
            self.model.entries.append((rect, number))

    @rule(seed=st.integers(0, 1000), count=st.integers(0, 150), spread=st.sampled_from([0.5, 12]))
    def insert_many(self, seed: int, count: int, spread: float) -> None:
        rows = scattered(seed, count, spread)
        numbers = np.arange(self.next_id, self.next_id + count)
        self.next_id += count
        try:
            self.tree.insert_many(rows, numbers)
        except TreeFull as error:
            assert "row " in str(error)
        else:
            self.model.entries += zip(map(tuple, rows.tolist()), numbers.tolist(), strict=True)

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.model.entries) - 1))
        rect, number = self.model.entries.pop(place)
        assert self.tree.delete(*rect, number)

    @precondition(lambda self: self.model.entries)
    @rule(share=st.sampled_from([0.3, 0.9, 1.0]), seed=st.integers(0, 100))
    def delete_many(self, share: float, seed: int) -> None:
        entries = self.model.entries
        order = np.random.default_rng(seed).permutation(len(entries))
        count = int(len(entries) * share)
        for place in order[:count]:
            rect, number = entries[place]
            assert self.tree.delete(*rect, number)
        self.model.entries = [entries[place] for place in order[count:]]

    @rule(rect=rects())
    def delete_what_is_not_there(self, rect: Rect) -> None:
        assert not self.tree.delete(*rect, 77)
        assert not self.tree.update(rect, 77, (0, 0, 1, 1))

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), new=rects())
    def update(self, data: st.DataObject, new: Rect) -> None:
        place = data.draw(st.integers(0, len(self.model.entries) - 1))
        rect, number = self.model.entries[place]
        try:
            assert self.tree.update(rect, number, new)
        except TreeFull:
            assert self.tree.stats().free_nodes < 13
        else:
            self.model.entries[place] = (new, number)

    @rule(query=rects())
    def search(self, query: Rect) -> None:
        wanted = self.model.search(query)
        assert sorted(self.tree.search(*query)) == wanted
        assert self.tree.count(*query) == len(wanted)

    @rule(query=rects(), k=st.integers(0, 40))
    def nearest(self, query: Rect, k: int) -> None:
        assert self.tree.nearest(*query, k=k) == self.model.nearest(query, k)

    @rule(queries=st.lists(rects(), max_size=20))
    def search_many(self, queries: list[Rect]) -> None:
        offsets, ids = self.tree.search_many(np.array(queries).reshape(-1, 4))
        found = [sorted(part.tolist()) for part in np.split(ids, offsets[1:-1])] if queries else []
        assert found == [self.model.search(query) for query in queries]

    @rule()
    def search_everything(self) -> None:
        everything = [[-np.inf, -np.inf, np.inf, np.inf]]
        offsets, ids = self.tree.search_many(everything)
        assert offsets.tolist() == [0, len(self.model.entries)]
        assert sorted(ids.tolist()) == sorted(number for _, number in self.model.entries)

    @invariant()
    def sound(self) -> None:
        self.tree.check()
        assert len(self.tree) == len(self.model.entries)
        assert self.tree.bounds == self.model.bounds()


TreeAndList.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.usefixtures("no_leaks")
class TestTreeAndList(TreeAndList.TestCase):
    """Run the machine."""
