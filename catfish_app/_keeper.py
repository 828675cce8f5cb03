"""A served tree's snapshot, written again and again in the background."""

from __future__ import annotations

import logging
import os
import time

import anyio
import anyio.to_thread
import attrs

from catfish_app import _snapshot
from catfish_app._rtree import RTree

logger = logging.getLogger("catfish")


@attrs.define(eq=False)
class SnapshotKeeper:
    """Writes a tree to one file; a file that is up to date is left alone."""

    tree: RTree
    path: str
    last: _snapshot.Saved | None = None
    saved_at_s: float | None = None
    """When the file was last known to be the tree (seconds since 1970)."""
    took_s: float = 0.0
    failures: int = 0
    _lock: anyio.Lock = attrs.field(factory=anyio.Lock, init=False)

    async def save(self) -> _snapshot.Saved:
        """Write now; errors as `RTree.save`.

        Runs in a thread. Cancellation waits for the file to be whole.
        """
        async with self._lock:
            began = time.monotonic()
            try:
                saved = await anyio.to_thread.run_sync(self._save)
            except (OSError, _snapshot.SnapshotError):
                self.failures += 1
                raise
            self.last, self.saved_at_s = saved, time.time()
            self.took_s = time.monotonic() - began
        return saved

    def _save(self) -> _snapshot.Saved:
        known = self.last.crc32 if self.last and os.path.exists(self.path) else None
        return _snapshot.save(self.tree._handle, self.path, unless_crc32=known)

    async def keep_saving(self, every_s: float) -> None:
        """Write every so often, until cancelled; what goes wrong is logged, and tried again."""
        while True:
            await anyio.sleep(every_s)
            try:
                saved = await self.save()
            except (OSError, _snapshot.SnapshotError) as error:
                logger.error("no snapshot was written, the next try is in %g s: %s", every_s, error)
            else:
                logger.info("%s: %d rectangles in %.3f s", self.path, saved.entries, self.took_s)
