"""A served tree that threads search in its server's memory, where that is mapped here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import l5
import l5.blocking
from catfish_app._mapped import REGION_NAME, MappedMemory, MappedSearches, no_tree
from catfish_app._rtree import Floats, Ids

T = TypeVar("T")

IDLE_MAX = 16
"""So many buffers for answers are kept for the next searches; more threads make their own."""


def open_tree(connection: l5.blocking.Connection, timeout: float | None) -> DirectTree:
    """Open the tree in its server's memory.

    Raises `l5.RemoteAccessError` when the server offers none, or its memory cannot be mapped here;
    `l5.RemoteProtocolError` when what it offers is none, `TimeoutError`, and what
    `l5.blocking.Connection.open_region` raises.
    """
    try:
        region = connection.open_region(REGION_NAME, timeout=timeout)
    except l5.RemoteAccessError as error:
        raise no_tree(error) from error
    try:
        mapping = region.mapping
        if mapping is None:
            because = f" ({region.emulated_because})" if region.emulated_because else ""
            raise l5.RemoteAccessError(
                f"over {connection.transport} the server's memory is not mapped here{because}, and"
                ' without an event loop a tree is searched only where it is: use mode="server", or'
                " catfish_app.RTreeClient, which reads such memory, on asyncio or trio"
            )
        return DirectTree(region, mapping)
    except BaseException:
        region.close()
        raise


class DirectTree:
    """A served tree in mapped memory, for any number of threads.

    Its methods raise what those of `MappedSearches` do, and `l5.RemoteAccessError` when the memory
    is the server's no longer. They do not wait.
    """

    def __init__(self, region: l5.blocking.RemoteRegion, mapping: memoryview) -> None:
        self.region = region
        self._memory = MappedMemory(mapping)
        self._idle: list[MappedSearches] = []

    @property
    def retries(self) -> int:
        """Attempts that a writer disturbed, of all threads."""
        return self._memory.retries

    def search(self, rect: Sequence[float] | Floats) -> Ids:
        """Return the ids of all rectangles that meet this one."""
        return self._alone(MappedSearches.search_now, rect)

    def count(self, rect: Sequence[float] | Floats) -> int:
        """Return how many rectangles meet this one."""
        return self._alone(MappedSearches.count_now, rect)

    def nearest(self, rect: Sequence[float] | Floats, k: int) -> tuple[Ids, Floats]:
        """Return the ids of the k nearest entries and their squared distances."""
        return self._alone(MappedSearches.nearest_now, rect, k)

    def search_many(self, rows: Floats) -> tuple[Ids, Ids]:
        """Search n x 4 rectangles; return (offsets, ids)."""
        return self._alone(MappedSearches.search_many_now, rows)

    def _alone(self, search: Callable[..., T], *args: object) -> T:
        """Search with buffers that no other thread uses meanwhile."""
        # This looks, twice in a millisecond at most, whether the server lives, and at every call
        # whether the memory is still granted. Nothing in it waits, so it has no timeout.
        self.region.read(0, 8)
        try:
            searches = self._idle.pop()
        except IndexError:
            searches = MappedSearches(self._memory)
        try:
            return search(searches, *args)
        finally:
            if len(self._idle) < IDLE_MAX:
                self._idle.append(searches)
