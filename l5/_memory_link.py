"""The client's end of a memory link: made by the first `open_region`, ends with its connection."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio

from . import _memory_wire as wire
from ._errors import (
    ConnectError,
    L5Error,
    LocalProtocolError,
    RemoteAccessError,
    RemoteProtocolError,
    RequestFailed,
    TransportUnavailable,
)
from ._memory import BaseRegion, EmulatedRegion
from ._transmit import start_request
from ._wait import Waiter
from .abc import MemoryChannel, OpenedRegion, RemoteRegion

if TYPE_CHECKING:
    from ._requests import Request
    from ._session import Session

logger = logging.getLogger("l5.client")

ENDED = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class MemoryLink:
    """See `l5.abc.RegionLink`; `connection` is a `Connection` that nobody else uses."""

    def __init__(
        self, connection: Any, user: Session, lock: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        self._connection = connection
        self._session: Session = connection._session
        self._user = user
        self._regions: weakref.WeakSet[BaseRegion] = weakref.WeakSet()
        self._opening = lock or anyio.Lock()
        self._next_handle = 1
        self._unclosed: list[int] = []
        self._ended = ""
        self.hub = self._session.hub
        self.strict: bool = user.strict
        self._session.on_close.append(self._on_end)
        user.on_close.append(self.on_user_end)

    # ---- ends ---------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Tell whether regions can be opened over it."""
        return not self._ended and self._session.state == "OPEN"

    def check(self) -> None:
        """See `RegionLink`."""
        if not self.up:
            raise RemoteAccessError(self._ended or self._why())

    def _why(self) -> str:
        error = self._session.error
        return f"the memory link has ended: {error or 'its server closed it'}"

    def _on_end(self) -> None:
        self._end(self._why())

    def on_user_end(self) -> None:
        """End: the connection that this belongs to has."""
        self._end("the connection that opened this region has ended")
        self._session.close()

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        for region in list(self._regions):
            region.end(self._ended)

    # ---- requests -----------------------------------------------------------------------------

    async def request(self, payload: bytes) -> bytes:
        """See `RegionLink`."""
        return await self.finish(await self.begin(payload))

    async def begin(self, payload: bytes) -> Any:
        """See `RegionLink`."""
        connection = self._connection
        try:
            request = await connection._open_request(len(payload), False)
            await connection._send_request(request, 0, memoryview(payload))
        except (*ENDED, L5Error) as error:
            raise self._explain(error) from error
        return request

    async def finish(self, begun: Request) -> bytes:
        """See `RegionLink`."""
        try:
            return await self._connection._await_answer(begun)
        except RequestFailed as error:
            if error.remote_type == wire.GONE:
                raise wire.RegionGone(error.remote_message) from None
            if error.remote_type != wire.REFUSED:
                raise RemoteAccessError(f"the owner failed: {error}") from error
            raise RemoteAccessError(error.remote_message) from None
        except (*ENDED, L5Error) as error:
            raise self._explain(error) from error

    def abandon(self, begun: Request) -> None:
        """See `RegionLink`."""
        self._connection._lose_interest(begun)

    def fail(self, error: Exception) -> None:
        """See `RegionLink`."""
        self._session.fail(error)

    def _explain(self, error: Exception) -> Exception:
        return RemoteAccessError(self._ended or f"the memory link has ended: {error!r}")

    # ---- regions ------------------------------------------------------------------------------

    async def open(self, name: str) -> RemoteRegion:
        """Open a region; one at a time, for descriptors come in the order of requests."""
        async with self._opening:
            self._close_abandoned()
            handle = self._next_handle
            self._next_handle += 1
            try:
                answer = await self.request(wire.pack_open(handle, name))
            except RemoteAccessError:
                raise
            except BaseException:
                self._unclosed.append(handle)  # cancelled: the owner may have opened it
                raise
            try:
                region = self._region_of(name, handle, wire.parse_grant(answer))
            except RemoteProtocolError as error:
                self._session.fail(error)
                raise
        self._regions.add(region)
        # One that is dropped without being closed is closed at the owner by the next opening.
        weakref.finalize(region, self._unclosed.append, handle).atexit = False
        return region

    def _region_of(self, name: str, handle: int, grant: wire.Grant) -> BaseRegion:
        channel = self._session.channel
        because = grant.emulated
        if not isinstance(channel, MemoryChannel):
            because = because or f"the memory link is {self._session.report}"
        opened = OpenedRegion(
            name=name,
            handle=handle,
            size_bytes=grant.size_bytes,
            writable=grant.writable,
            atomic=grant.atomic,
            params=grant.params,
            link=self,
            reply_bytes=min(grant.reply_bytes, self._session.sends.max_message_bytes - 16),
            emulated_because=because,
        )
        if because or not isinstance(channel, MemoryChannel):
            return EmulatedRegion(opened)
        try:
            region = channel.reach(opened)
        except TransportUnavailable as error:
            region = EmulatedRegion(opened)
            region.emulated_because = error.reason
        assert isinstance(region, BaseRegion)
        return region

    async def release(self, region: RemoteRegion) -> None:
        """See `RegionLink`."""
        assert isinstance(region, BaseRegion)
        self._regions.discard(region)
        self._unclosed.append(region.handle)  # and once more when it is dropped, which is nothing
        self._close_abandoned()

    def _close_abandoned(self) -> None:
        """Tell the owner what was closed, without waiting; what finds no room goes next time."""
        session = self._session
        while self._unclosed and self.up:
            try:
                id = start_request(session, wire.pack_close(self._unclosed[-1]))
            except (*ENDED, L5Error, OSError) as error:
                session.lose(error)
                return
            if id is None:
                return
            self._unclosed.pop()
            request = session.requests.open(id, Waiter(), sent=True)
            session.requests.abandon(request)  # answered all the same: it keeps its place


class OpensRegions:
    """The part of `Connection` that opens its peer's memory."""

    _session: Session
    _dial: Callable[[], Awaitable[Any]] | None = None
    """Makes a connection for memory to the same server; None where this end was dialled."""
    _memory: MemoryLink | None = None
    _linking: anyio.Lock | None = None

    async def open_region(self, name: str) -> RemoteRegion:
        """Open memory that the server exports by `name`; see `l5.abc.RemoteRegion`.

        The first call makes a second, small connection to the same server.  Raises
        `RemoteAccessError` when there is no such region, or no way to it; `ValueError` for what
        cannot be a name.  The region ends with this connection, or by ``await region.aclose()``.
        """
        wire.check_name(name)
        self._session.check_open()
        link = await self._memory_link()
        return await link.open(name)

    async def _memory_link(self) -> MemoryLink:
        if self._dial is None:
            raise LocalProtocolError("only the end that connected opens regions: the server's")
        if self._linking is None:
            self._linking = anyio.Lock()
        async with self._linking:
            if self._memory is not None and self._memory.up:
                return self._memory
            try:
                connection = await self._dial()
            except (ConnectError, OSError) as error:
                raise RemoteAccessError(f"no memory link to the server: {error}") from error
            self._memory = MemoryLink(connection, self._session)
            if self._session.state != "OPEN":
                self._memory.on_user_end()
                self._session.check_open()
            return self._memory
