"""A batch of searches that the server and its client share, from one end each.

        rows   0 ----------------> | .......... | <------------------ n
               the client searches    undone      the server is asked,
               a part at a time                   for two parts at a time

Each takes its next part when it is done with one, so large that both would end together by what
they have been found to take for a row.  So the server always has a part that waits while it works
on another, and the client's processor searches meanwhile; and a client that needs longer for one
row than the server for all that are left takes none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

import anyio
import anyio.lowlevel
import attrs
import numpy as np

from catfish_app._rtree import Floats, Ids

Found = tuple[Ids, Ids]
"""Offsets and ids, as `RTree.search_many` returns them."""
Search = Callable[[Floats], Awaitable[Found]]

TURN_ROWS = 256
"""So many are searched here before the event loop has a turn: the server's answers want in."""
UNDER_WAY = 2
"""Parts that the server has at a time."""
UNKNOWN = 3
"""A way that is not known yet gets this fraction of what is left, of the server's: one row here."""
ASKED_ROWS = 4096
TURN_S = 0.5e-3
"""So long is searched here, about, before the server's answers are looked for."""
LEAST_S = 50e-6
"""So long the server works on a part, at least: to ask takes as long."""
FORGOTTEN = 1.0 / 16.0


@attrs.define(eq=False)
class Undone:
    """The rows that nobody has taken yet."""

    first: int
    end: int

    @property
    def left(self) -> int:
        return self.end - self.first

    def front(self, count: int) -> slice:
        """Take so many from the front, as far as there are."""
        begin, self.first = self.first, min(self.first + count, self.end)
        return slice(begin, self.first)

    def back(self, count: int) -> slice:
        """Take so many from the end, as far as there are."""
        end, self.end = self.end, max(self.end - count, self.first)
        return slice(self.end, end)


@attrs.define(eq=False)
class Pace:
    """Rows and seconds of the last parts of one side; the older they are the less they count.

    Sums, and no average of what each took for a row: a server that has used up a quota answers a
    few parts late, and nearly all its time is in those.
    """

    seconds: float = 0.0
    rows: float = 0.0

    def note(self, seconds: float, rows: int) -> None:
        """Take note of a part."""
        self.seconds += seconds - self.seconds * FORGOTTEN
        self.rows += rows - self.rows * FORGOTTEN

    @property
    def row_s(self) -> float:
        """What a row takes; 0: not known."""
        return self.seconds / self.rows if self.rows else 0.0


@attrs.define(eq=False)
class Paces:
    """How fast both sides are."""

    ours: Pace = attrs.field(factory=Pace)
    theirs: Pace = attrs.field(factory=Pace)

    def here(self, left: int) -> int:
        """Return how many of the rows that are left are to be searched here next."""
        ours_s, theirs_s = self.ours.row_s, self.theirs.row_s
        if not ours_s or not theirs_s:
            return 1
        share = theirs_s / (theirs_s + ours_s)
        return min(int(left * share), TURN_ROWS, max(1, int(TURN_S / ours_s)))

    def there(self, left: int) -> int:
        """Return for how many of them the server is to be asked next."""
        ours_s, theirs_s = self.ours.row_s, self.theirs.row_s
        if not ours_s or not theirs_s:
            return max(1, min(left // UNKNOWN, TURN_ROWS))
        share = ours_s / (theirs_s + ours_s)
        count = left if left * (1.0 - share) < 1.0 else int(left * share / UNDER_WAY)
        return max(1, int(LEAST_S / theirs_s), min(count, ASKED_ROWS))


async def from_both_ends(rows: Floats, here: Search, ask: Search, paces: Paces) -> Found:
    """Search rows `here`, from the front, and `ask` for the others meanwhile, from the end.

    Raises what the first of both raised that failed; the other one is cancelled.
    """
    undone = Undone(0, len(rows))
    parts: dict[int, Found] = {}
    answered = 0.0

    async def send() -> None:
        nonlocal answered
        while undone.left:
            taken = undone.back(paces.there(undone.left))
            began = perf_counter()
            parts[taken.start] = await ask(rows[taken])
            now = perf_counter()
            paces.theirs.note(now - max(began, answered), taken.stop - taken.start)
            answered = now
            await anyio.lowlevel.checkpoint()  # who is answered at once has not waited for anything

    async def search() -> None:
        while undone.left and (count := paces.here(undone.left)):
            taken = undone.front(count)
            began = perf_counter()
            parts[taken.start] = await here(rows[taken])
            paces.ours.note(perf_counter() - began, taken.stop - taken.start)
            await anyio.lowlevel.checkpoint()

    await at_once(send, search)
    return joined([parts[start] for start in sorted(parts)])


async def at_once(ask: Callable[[], Awaitable[None]], here: Callable[[], Awaitable[None]]) -> None:
    """Let some tasks `ask`, do what is to be done `here` meanwhile, and wait for all.

    Raises what the first of them raised that failed; the others are cancelled.
    """
    failures: list[Exception] = []

    async def run(what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(UNDER_WAY):
            tasks.start_soon(run, ask)
        for _ in range(2):  # trio runs what is ready in any order: after two turns it is sent
            await anyio.lowlevel.checkpoint()
        await run(here)
    if failures:
        raise failures[0]


async def in_turns(search: Search, rows: Floats) -> Found:
    """Search rows in parts, between which other tasks have a turn."""
    parts: list[Found] = []
    for first in range(0, len(rows), TURN_ROWS):
        parts.append(await search(rows[first : first + TURN_ROWS]))
        await anyio.lowlevel.checkpoint()
    return joined(parts)


def joined(parts: list[Found]) -> Found:
    """Put answers one behind the other."""
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])
    offsets = np.zeros(len(counts) + 1, np.uint64)
    np.cumsum(counts, out=offsets[1:])
    return offsets, np.concatenate([ids for _, ids in parts])
