"""What a client makes of the server's answers: errors, and long answers in pieces."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

import l5
from catfish_app._kernels import TreeFull
from catfish_app._rtree import Ids
from catfish_app._wire import U64, ReplyError


class BusyError(l5.L5Error):
    """The server runs another load; try again when that has ended."""


_REMOTE_ERRORS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TreeFull": TreeFull,
    "IndexError": IndexError,
    "UnknownLoad": LookupError,
    "BusyError": BusyError,
}


def translated(error: l5.RequestFailed) -> Exception:
    """Return what the server's error is in Python."""
    kind = _REMOTE_ERRORS.get(error.remote_type)
    return error if kind is None else kind(error.remote_message)


def distrust(error: ReplyError) -> l5.RemoteProtocolError:
    return l5.RemoteProtocolError(f"the server's answer makes no sense: {error}")


class Cutter:
    """Cuts a stream of pieces where ids end.

    Pieces end there already, unless the two ends agreed on segments of an odd size.
    """

    def __init__(self) -> None:
        self._rest = b""

    def take(self, piece: bytes) -> Ids | None:
        """Return the ids that are whole now; None: not one."""
        piece = self._rest + piece if self._rest else piece
        whole = len(piece) & ~7
        self._rest = piece[whole:]
        return np.frombuffer(piece, U64, whole >> 3) if whole else None

    def end(self) -> None:
        """Raise `l5.RemoteProtocolError` if a part of an id is left."""
        if self._rest:
            raise distrust(ReplyError("it ends within an id")) from None


class IdPieces:
    """The answer to one search, in pieces; see `RTreeClient.search_iter`."""

    def __init__(self, connection: l5.Connection, request: bytes) -> None:
        self._stream = connection.request_stream(request)
        self._cutter = Cutter()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stream.__aexit__(exc_type, exc_value, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Ids:
        while True:
            try:
                piece = await self._stream.__anext__()
            except l5.RequestFailed as error:
                raise translated(error) from None
            except StopAsyncIteration:
                self._cutter.end()
                raise
            ids = self._cutter.take(piece)
            if ids is not None:
                return ids
