"""`OffloadingClient` without an event loop: it searches by itself, always or when that is better.

What it knows of both ways, and the policies, are those of `catfish_app.OffloadingClient` (`_ways`).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

import anyio
import numpy as np
import numpy.typing as npt

import l5
import l5.blocking
from catfish_app._batch import joined
from catfish_app._mapped import Disturbed, checked_queries
from catfish_app._requests import QUERIES_AT_ONCE, Mode, Rect, bad_rect, check_k, place, renumbered
from catfish_app._rtree import Floats, Ids
from catfish_app._ways import NOTHING, Ways
from catfish_app.blocking._client import RTreeClient
from catfish_app.blocking._direct import DirectTree, open_tree
from catfish_app.blocking._pieces import expiry, left

__all__ = ["OffloadingClient"]

T = TypeVar("T")

_CLIENT = l5.Path.CLIENT
_ANY = (0.0, 0.0, 0.0, 0.0)


class OffloadingClient(Ways, RTreeClient):
    """An `RTreeClient` that searches the tree itself, in the server's memory.

    With ``mode="client"`` it always does; `l5.RemoteAccessError` when the server offers no tree for
    that, or its memory cannot be mapped here (another host, or a connection that stayed a socket).
    With ``"adaptive"`` it does what `policy` says, which hears the server's heartbeats and how long
    searches took, and stays with the server where there is no other way: `statistics` tells the
    reason. It opens the memory only when it wants to search for the first time. The answers are the
    same, and mean the same: a search that writers disturb too often is the server's after all.

    The policy is asked by one thread at a time, and may be a plain object. `last_search` is of
    whichever thread was last.
    """

    def __init__(
        self,
        connection: l5.blocking.Connection,
        *,
        mode: Mode = "adaptive",
        policy: l5.OffloadPolicy | None = None,
    ) -> None:
        super().__init__(connection)
        self._begin(connection.transport, connection.heartbeat, mode, policy)
        self._tree: DirectTree | None = None
        # Reentrant: a signal's handler may search, and come in at any place.
        self._knowing = threading.RLock()
        """Held while the policy is asked or told, or searches are counted."""
        self._opening = threading.RLock()

    def __repr__(self) -> str:
        return f"<OffloadingClient {self.mode} over {self.connection!r}>"

    def close(self) -> None:
        """Close the connection, and with it the view of the server's memory."""
        self._tree = None
        super().close()

    def open(self, *, timeout: float | None = None) -> None:
        """Open the server's memory, which else the first search does that needs it.

        Raises `l5.RemoteAccessError` when the server offers no tree there, or it cannot be mapped;
        closes the connection then.
        """
        try:
            self._open(timeout)
        except BaseException:
            self.close()
            raise

    def _open(self, timeout: float | None) -> DirectTree:
        expires = expiry(timeout)
        with _held(self._opening, timeout):
            tree = self._tree
            if tree is None:
                tree = self._tree = open_tree(self.connection, left(expires))
            return tree

    # ---- searching -------------------------------------------------------------------------------

    def search(self, rect: Rect, *, timeout: float | None = None) -> Ids:
        """See `RTreeClient.search`."""
        return self._either(DirectTree.search, RTreeClient.search, rect, (rect,), timeout)

    def count(self, rect: Rect, *, timeout: float | None = None) -> int:
        """See `RTreeClient.count`."""
        return self._either(DirectTree.count, RTreeClient.count, rect, (rect,), timeout)

    def nearest(
        self, where: Rect, k: int = 1, *, timeout: float | None = None
    ) -> tuple[Ids, Floats]:
        """See `RTreeClient.nearest`."""
        check_k(k)
        rect = place(where)
        return self._either(_nearest, RTreeClient.nearest, rect, (rect, k), timeout)

    def search_many(self, rects: npt.ArrayLike, *, timeout: float | None = None) -> tuple[Ids, Ids]:
        """See `RTreeClient.search_many`; the policy is asked for each 4096 rows, which go one way.

        (The client for asyncio and trio shares a batch with the server, from both of its ends.)
        """
        expires = expiry(timeout)
        rows = checked_queries(rects)
        parts: list[tuple[Ids, Ids]] = []
        for first in range(0, len(rows), QUERIES_AT_ONCE):
            part = rows[first : first + QUERIES_AT_ONCE]
            try:
                found = self._either(
                    DirectTree.search_many,
                    RTreeClient.search_many,
                    _ANY,
                    (part,),
                    left(expires),
                    len(part),
                )
            except ValueError as error:
                raise renumbered(error, first) from None
            parts.append(found)
        return joined(parts)

    def _either(
        self,
        here: Callable[..., T],
        ask: Callable[..., T],
        rect: Rect,
        args: tuple[Any, ...],
        timeout: float | None,
        searches: int = 1,
    ) -> T:
        """Search here, or ask the server: also when writers left no time here."""
        began, given_up = perf_counter(), None
        expires = expiry(timeout)
        with self._knowing:
            path = self._choose(began)
        try:
            if path is _CLIENT:
                tree = self._tree
                if tree is None:
                    tree = self._reach(left(expires))
                    began = perf_counter()  # it takes so long once: that tells nothing of the next
                if tree is not None:
                    found, given_up = self._direct(tree, here, rect, args, began, searches)
                    if found is not None:
                        return found
            answer = ask(self, *args, timeout=left(expires))
        except BaseException:
            with self._knowing:
                self._observe(path, NOTHING, perf_counter())
            raise
        with self._knowing:
            now = self._note_served(began, given_up, searches)
            self._observe(path, (now - began) / searches, now)
        return answer

    def _direct(
        self,
        tree: DirectTree,
        search: Callable[..., T],
        rect: Rect,
        args: tuple[Any, ...],
        began: float,
        searches: int,
    ) -> tuple[T | None, int | None]:
        """Search here; without an answer ask the server. The number: attempts, if writers are why.

        Tells the policy of what was found.
        """
        before = tree.retries
        try:
            if len(rect) != 4:
                raise bad_rect(rect)
            found = search(tree, *args)
        except Disturbed:
            with self._knowing:
                self._disturbed += searches
            return None, tree.retries - before
        except (struct.error, TypeError):
            raise bad_rect(rect) from None
        except l5.RemoteAccessError as error:
            if self.connection.closed:  # by another thread, meanwhile
                raise anyio.ClosedResourceError from None
            self._lose(error)
            return None, None
        now = perf_counter()
        with self._knowing:
            self._client_count += searches
            self._last = (_CLIENT, now - began, tree.retries - before, False)
            self._observe(_CLIENT, (now - began) / searches, now)
        return found, None

    def _reach(self, timeout: float | None) -> DirectTree | None:
        """Return the tree in the server's memory, if it can be reached."""
        try:
            return self._open(timeout)
        except (l5.RemoteAccessError, l5.RemoteProtocolError) as error:
            if self.mode == "client":
                raise
            self._reason = str(error)
            return None


def _nearest(tree: DirectTree, rect: Rect, k: int) -> tuple[Ids, Floats]:
    ids, squares = tree.nearest(rect, k)
    return ids, np.sqrt(squares)


@contextmanager
def _held(lock: Any, timeout: float | None) -> Generator[None]:
    """Hold a lock; `TimeoutError`."""
    if not lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
        raise TimeoutError("the server's memory was not opened within the timeout")
    try:
        yield
    finally:
        lock.release()
