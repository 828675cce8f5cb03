"""The answer to one search, in pieces, for threads; and times that calls have together."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Self

import l5
import l5.blocking
from catfish_app._pieces import Cutter, translated
from catfish_app._rtree import Ids


def expiry(timeout: float | None) -> float | None:
    """Return when a call with this `timeout` is over; None: never."""
    return None if timeout is None else monotonic() + timeout


def left(expires: float | None) -> float | None:
    """Return the `timeout` of what a call does next: what is left of its time."""
    return None if expires is None else max(0.0, expires - monotonic())


class IdPieces:
    """The answer to one search, in pieces; see `RTreeClient.search_iter`."""

    def __init__(
        self, connection: l5.blocking.Connection, request: bytes, timeout: float | None
    ) -> None:
        self._stream = connection.request_stream(request, timeout=timeout)
        self._cutter = Cutter()

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.__exit__(exc_type, exc_value, traceback)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Ids:
        while True:
            try:
                piece = self._stream.__next__()
            except l5.RequestFailed as error:
                raise translated(error) from None
            except StopIteration:
                self._cutter.end()
                raise
            ids = self._cutter.take(piece)
            if ids is not None:
                return ids
