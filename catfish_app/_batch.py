"""A batch of searches that is split: which rows go which way, and what both ways found in one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import numpy.typing as npt

from catfish_app._rtree import Floats, Ids

Found = tuple[Ids, Ids]
"""Offsets and ids, as `RTree.search_many` returns them."""
Rows = npt.NDArray[np.intp]

TURN_ROWS = 256
"""So many are searched here before the event loop has a turn: the server's answers want in."""


@attrs.frozen
class Split:
    """The numbers of the rows that go to the server, and of those that are searched here."""

    theirs: Rows
    ours: Rows


def split(count: int, is_ours: Callable[[], bool]) -> Split:
    """Ask for each of `count` rows where it goes."""
    ours = np.fromiter((is_ours() for _ in range(count)), np.bool_, count)
    return Split(np.flatnonzero(~ours), np.flatnonzero(ours))


async def at_once(ask: Callable[[], Awaitable[None]], here: Callable[[], Awaitable[None]]) -> None:
    """Send what `ask` asks, do what is to be done `here` meanwhile, and wait for both.

    Raises what the first of them raised that failed; the other one is cancelled.
    """
    failures: list[Exception] = []

    async def run(what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, ask)
        for _ in range(2):  # trio runs what is ready in any order: after two turns it is sent
            await anyio.lowlevel.checkpoint()
        await run(here)
    if failures:
        raise failures[0]


async def in_turns(search: Callable[[Floats], Awaitable[Found]], rows: Floats) -> Found:
    """Search rows in parts, between which other tasks have a turn."""
    parts: list[Found] = []
    for first in range(0, len(rows), TURN_ROWS):
        parts.append(await search(rows[first : first + TURN_ROWS]))
        await anyio.lowlevel.checkpoint()
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])
    return _offsets(counts), np.concatenate([ids for _, ids in parts])


def merged(rows: Split, theirs: Found, ours: Found) -> Found:
    """Put the answers of both in the order of the rows."""
    counts = np.zeros(len(rows.theirs) + len(rows.ours), np.uint64)
    pairs = ((rows.theirs, theirs), (rows.ours, ours))
    for numbers, (part, _) in pairs:
        counts[numbers] = np.diff(part)
    offsets = _offsets(counts)
    ids = np.empty(int(offsets[-1]), np.uint64)
    for numbers, (part, found) in pairs:
        moved = np.repeat(offsets[numbers] - part[:-1], np.diff(part).astype(np.intp))
        ids[moved + np.arange(len(found), dtype=np.uint64)] = found
    return offsets, ids


def _offsets(counts: Ids) -> Ids:
    offsets = np.zeros(len(counts) + 1, np.uint64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
