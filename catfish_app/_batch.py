"""A batch of searches that the server and its client share, from one end each.

        rows   0 ----------------> | .......... | <------------------ n
               the client searches    undone      the server is asked,
               a part at a time                   for two parts at a time

Each takes its next part when it is done with one, so large that both would end together by what
they have been found to take for a row (`catfish_app._paces`).  So the server always has a part that
waits while it works on another, and the client's processor searches meanwhile; and a client that
needs longer for one row than the server for all that are left takes none.

        rows   ------------------> | taken over -->|   late   |
               the client searches   a part of the server's, and its answer has not come

A client with nothing left searches what the server has for longer than it would need itself: the
part that was asked for last is the one that the server comes to last.  A server that a quota holds
back keeps nobody waiting so; whichever answer is first counts, and the other is dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Protocol

import anyio
import anyio.lowlevel
import attrs
import numpy as np

from catfish_app._paces import TURN_S, Paces
from catfish_app._rtree import Floats, Ids
from catfish_app._wire import join_ids

Found = tuple[Ids, Ids]
"""Offsets and ids, as `RTree.search_many` returns them."""
Search = Callable[[Floats], Awaitable[Found]]

TURN_ROWS, TURN_ROWS_MAX = 256, 4096
"""So many are searched before the event loop has a turn, and at most where they take no time."""
UNDER_WAY = 2
"""Parts that the server has at a time."""
TAKEN_ROWS = 64
"""So many are taken over first, then twice as many each time: the answer may be about to come."""

LATE_S = 100e-6
SPUN_S = 1.2e-3
"""Shorter waits are turns of the loop: event loops sleep for whole milliseconds."""


class Sides(Protocol):
    """Who can search the rows of a batch; what they raise names rows by their place in it."""

    async def here(self, rows: Floats, first: int) -> Found:
        """Search here."""
        ...

    async def ask(self, rows: Floats, first: int) -> Found:
        """Have the server search."""
        ...

    async def instead(self, rows: Floats, first: int) -> Found | None:
        """Search here what the server was asked for; None: that is not to be had."""
        ...


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
class Asked:
    """A part that the server has."""

    first: int
    end: int
    sent_at: float
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    taken: list[Found] = attrs.field(factory=list[Found])
    """What has been found here of it, from its front, which `next` is the end of."""
    next: int = 0
    step: int = TAKEN_ROWS
    own: bool = True
    """Nothing keeps the client from taking it over."""

    def __attrs_post_init__(self) -> None:
        self.next = self.first

    @property
    def count(self) -> int:
        return self.end - self.first


@attrs.define(eq=False)
class Batch:
    """What is done, under way and undone of a batch; `search` does all of it, once."""

    rows: Floats
    sides: Sides
    paces: Paces
    now: Callable[[], float] = perf_counter
    taken_over: int = 0
    """Rows that were asked for and then found here first."""
    undone: Undone = attrs.field(init=False)
    _parts: dict[int, Found] = attrs.field(factory=dict[int, Found], init=False)
    _asked: dict[int, Asked] = attrs.field(factory=dict[int, Asked], init=False)
    _answered_at: float = attrs.field(default=0.0, init=False)
    _busy_since: float = attrs.field(default=0.0, init=False)
    """When this client began with what it searches; 0: it waits."""
    _askers: int = attrs.field(default=UNDER_WAY, init=False)
    _news: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.undone = Undone(0, len(self.rows))

    async def search(self) -> Found:
        """Return what was found, in the order of the rows.

        Raises what the first of both sides raised that failed; the other one is cancelled.
        """
        await at_once(self._ask, self._search)
        return joined([self._parts[start] for start in sorted(self._parts)])

    # ---- the server's ----------------------------------------------------------------------------

    @property
    def _under_way(self) -> int:
        return sum(asked.count for asked in self._asked.values())

    async def _ask(self) -> None:
        """Have the server search as long as it is worth it."""
        try:
            await self._ask_on()
        finally:
            self._askers -= 1
            self._news.set()

    async def _ask_on(self) -> None:
        while count := self.paces.there(self.undone.left, self._under_way):
            taken = self.undone.back(count)
            asked = Asked(taken.start, taken.stop, self.now())
            self._asked[asked.first] = asked
            found = None
            with asked.scope:
                found = await self.sides.ask(self.rows[taken], asked.first)
            if found is not None and asked.first in self._asked:
                self._answered(asked, found)
            await anyio.lowlevel.checkpoint()  # who is answered at once has not waited for anything

    def _answered(self, asked: Asked, found: Found) -> None:
        """Take the server's answer; what was found here of that part is dropped."""
        came_at = now = self.now()
        if self._busy_since and self.paces.at_once == 1:
            # The loop had no turn while this client searched: it came at some time meanwhile.
            came_at = (max(self._busy_since, asked.sent_at) + now) / 2.0
        since = max(asked.sent_at, self._answered_at)
        self.paces.theirs.note(max(0.0, came_at - since), asked.count)
        self._answered_at = came_at
        self._done(asked, found)

    def _done(self, asked: Asked, found: Found) -> None:
        del self._asked[asked.first]
        self._parts[asked.first] = found
        self._news.set()

    # ---- the client's ----------------------------------------------------------------------------

    async def _search(self) -> None:
        """Search until all is done, whoever does it."""
        while self.undone.left or self._asked:
            count = self.paces.here(self.undone.left, self._under_way)
            if not self._askers and self.undone.left:
                await self._search_part(self.paces.turn_rows())
            elif count:
                await self._search_part(count)
            elif self._asked:
                await self._look_after(list(self._asked.values()))
            else:
                await anyio.lowlevel.checkpoint()  # who asks is about to ask again, or to end

    async def _search_part(self, count: int) -> None:
        taken = self.undone.front(count)
        self._busy_since = began = self.now()
        found = await self.sides.here(self.rows[taken], taken.start)
        self._parts[taken.start] = found
        self.paces.note_ours(self.now() - began, taken.stop - taken.start)
        await self._look()

    async def _look(self) -> None:
        """Let answers in."""
        for _ in range(2):  # the loop's news in the first turn, and in the second who waited for it
            await anyio.lowlevel.checkpoint()
        self._busy_since = 0.0

    async def _look_after(self, asked: list[Asked]) -> None:
        """Take over a bit of what is late, or wait until something is, or is answered."""
        last = asked[-1]
        if self.paces.trial is self.paces.ours and last.own:
            await self._take_over(last)
            return
        late_at = self._late_at(asked[0])
        if late_at is None or not last.own:
            self._news = anyio.Event()
            await self._news.wait()
        elif self.now() >= late_at:
            await self._take_over(last)
        else:
            await self._wait(late_at)

    def _late_at(self, asked: Asked) -> float | None:
        """Return when what the server works on would be done had it been begun here; None: unknown.

        Nobody is asked in no time.
        """
        row_s = self.paces.ours.row_s
        since = max(asked.sent_at, self._answered_at)
        return since + max(LATE_S, asked.count * row_s) if row_s else None

    async def _wait(self, until: float) -> None:
        """Wait for news."""
        news = self._news = anyio.Event()
        left_s = until - self.now()
        if left_s > SPUN_S:
            with anyio.move_on_after(left_s - SPUN_S):
                await news.wait()
        while not news.is_set() and self.now() < until:
            await anyio.lowlevel.checkpoint()

    async def _take_over(self, asked: Asked) -> None:
        """Search a bit of a part that the server has, and drop its request with the last of it."""
        trial = self.paces.trial is self.paces.ours
        step = self.paces.turn_rows() if trial else asked.step
        first, asked.next = asked.next, min(asked.next + step, asked.end)
        self._busy_since = began = self.now()
        found = await self.sides.instead(self.rows[first : asked.next], first)
        if found is None:
            asked.own, self._busy_since, self.paces.trial = False, 0.0, None
            return
        now = self.now()
        self.paces.note_ours(now - began, asked.next - first)
        asked.taken.append(found)
        if not trial:
            asked.step = min(2 * asked.step, self.paces.turn_rows())
        if asked.next == asked.end and asked.first in self._asked:
            self.paces.theirs.note(now - max(asked.sent_at, self._answered_at), 0)
            self._answered_at = now
            self.taken_over += asked.count
            self._done(asked, joined(asked.taken))
            asked.scope.cancel()
        await self._look()


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


async def in_turns(
    search: Search, rows: Floats, step: int = TURN_ROWS, now: Callable[[], float] = perf_counter
) -> Found:
    """Search rows in parts of about `TURN_S`, between which other tasks have a turn."""
    parts: list[Found] = []
    first = 0
    while first < len(rows):
        began = now()
        parts.append(await search(rows[first : first + step]))
        first, took_s = first + step, now() - began
        if took_s * 2.0 < TURN_S:
            step = min(2 * step, TURN_ROWS_MAX)
        elif took_s > TURN_S:
            step = max(step // 2, TURN_ROWS)
        await anyio.lowlevel.checkpoint()
    return joined(parts)


def joined(parts: list[Found]) -> Found:
    """Put answers one behind the other."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.zeros(1 + sum(len(part[0]) - 1 for part in parts), np.uint64)
    first = total = 0
    for part, ids in parts:
        end = first + len(part) - 1
        np.add(part[1:], np.uint64(total), out=offsets[first + 1 : end + 1])
        first, total = end, total + len(ids)
    return offsets, join_ids(ids for _, ids in parts)
