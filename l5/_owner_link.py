"""The owner's end of a memory link: handles, rights, and what is asked for, executed.

Requests are executed as they come, in the event loop, and answered at once.  While an answer finds
no room, what comes waits unexecuted: no more than may be in flight, so a client that does not read
its answers costs a bounded amount of memory.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from . import _memory_wire as wire
from ._errors import L5Error, RemoteAccessError, TransportUnavailable
from ._frames import Kind
from ._memory_wire import Asked, Operation
from ._transmit import accept_frame
from ._wait import Waiter
from .abc import MemoryChannel

if TYPE_CHECKING:
    from ._exports import Export, Exports
    from ._options import ListenOptions
    from ._session import Session

__all__ = ["OwnerLink"]


@attrs.define(eq=False)
class _Grant:
    export: Export
    one_sided: bool
    """The channel gave access, and has not withdrawn it."""


class OwnerLink:
    """Executes what one client asks for; the `RequestServer` of a memory link's session."""

    reads_lanes: bool = False

    def __init__(self, exports: Exports, options: ListenOptions) -> None:
        self._exports = exports
        self._regions_max = options.regions_max
        self._grants: dict[int, _Grant] = {}
        self._session: Session | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Requests that came while an answer found no room; no more than may be in flight."""
        self._waiter: Waiter | None = None
        self._unsent: tuple[int, int, bytes] | None = None

    # ---- requests -----------------------------------------------------------------------------

    def on_request(
        self, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """See `RequestServer`: execute at once, and answer at once if there is room."""
        del deadline_us
        self._session = session
        if self._unsent is not None:
            self._waiting.append((id, payload))
            return
        self._answer(session, id, payload)

    def on_news(self) -> bool:
        """See `RequestServer`: its requests come by `on_request` only."""
        return False

    def on_cancel(self, session: Session, id: int) -> None:
        """See `RequestServer`: it is executed already, or will be."""

    def on_end(self, session: Session) -> None:
        """See `RequestServer`."""
        del session
        self._waiting.clear()
        self._withdraw_all()
        self._wake()

    def _answer(self, session: Session, id: int, payload: bytes) -> None:
        kind = Kind.RESPONSE
        try:
            reply = self._execute(session, payload)
        except RemoteAccessError as error:
            session.answered += 1
            gone = isinstance(error, wire.RegionGone)
            session.reply_error(id, wire.GONE if gone else wire.REFUSED, str(error))
            return
        session.answered += 1
        session.window.handling -= 1
        if session.senders or not session.try_frame(kind, 0, id, reply):
            self._unsent = (kind, id, reply)
            self._wake()

    def _execute(self, session: Session, payload: bytes) -> bytes:
        asked = wire.parse(payload)
        if asked.operation is Operation.OPEN:
            return self._open(session, asked)
        if asked.operation is Operation.CLOSE:
            self._close(asked.handle)
            return b""
        grant = self._grants.get(asked.handle)
        if grant is None:
            raise RemoteAccessError(f"no region is open here as number {asked.handle}")
        grant.export.check()
        return _EXECUTE[asked.operation](grant.export, asked, _reply_bytes(session))

    # ---- opening and closing ------------------------------------------------------------------

    def _open(self, session: Session, asked: Asked) -> bytes:
        if asked.handle in self._grants:
            raise RemoteAccessError(f"number {asked.handle} is in use on this link")
        if len(self._grants) >= self._regions_max:
            raise RemoteAccessError(
                f"this connection has {self._regions_max} regions open, which is the most"
                " (regions_max of the server): close one"
            )
        try:
            name = str(asked.body, "utf-8")
        except UnicodeDecodeError:
            raise RemoteAccessError("the name of a region is UTF-8") from None
        export = self._exports.find(name)
        grant = self._grants[asked.handle] = _Grant(export, one_sided=False)
        params: dict[str, Any] = {}
        emulated = ""
        channel = session.channel
        if isinstance(channel, MemoryChannel):
            try:
                params = dict(channel.grant(self._exports.granted(asked.handle, export)))
                grant.one_sided = True
            except TransportUnavailable as error:
                emulated = f"at the server: {error.reason}"[:1000]
        region = export.region
        return wire.pack_grant(
            wire.Grant(
                size_bytes=region.size_bytes,
                writable=region.writable,
                atomic=region.atomic,
                reply_bytes=_reply_bytes(session),
                params=params,
                emulated=emulated,
            )
        )

    def _close(self, handle: int) -> None:
        grant = self._grants.pop(handle, None)
        if grant is not None:
            self._withdraw(handle, grant)

    def withdraw(self, export: Export) -> None:
        """End access to a region that has been revoked; its handle goes on to say so."""
        for handle, grant in self._grants.items():
            if grant.export is export:
                self._withdraw(handle, grant)

    def _withdraw(self, handle: int, grant: _Grant) -> None:
        if grant.one_sided and self._session is not None:
            grant.one_sided = False
            channel = self._session.channel
            assert isinstance(channel, MemoryChannel)
            channel.withdraw(handle)

    def _withdraw_all(self) -> None:
        grants, self._grants = self._grants, {}
        for handle, grant in grants.items():
            self._withdraw(handle, grant)

    # ---- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the link."""
        if self._session is not None:
            self._session.close()

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    async def run(self, session: Session) -> None:
        """Send, as soon as there is room, the answers that found none; return when it ends."""
        self._session = session
        while session.state == "OPEN":
            if self._unsent is None:
                self._waiter = Waiter()
                try:
                    await session.hub.park(self._waiter)
                finally:
                    self._waiter = None
                continue
            kind, id, reply = self._unsent
            try:
                await accept_frame(session, kind, 0, id, reply)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, L5Error):
                return  # it has ended, and has said why
            self._unsent = None
            while self._waiting and self._unsent is None and session.state == "OPEN":
                self._answer(session, *self._waiting.popleft())


# ---- operations -------------------------------------------------------------------------------


def _reply_bytes(session: Session) -> int:
    """Say how much data fits into one answer to this client (and into one request of its)."""
    limits = min(session.sends.segment_bytes, session.takes.segment_bytes)
    most = min(limits, session.sends.max_message_bytes)
    return max(64, min(wire.DATA_BYTES, most - 16))


def _read(export: Export, asked: Asked, reply_bytes: int) -> bytes:
    region = export.region
    spans = asked.spans(region.size_bytes, reply_bytes)
    return b"".join([region.read(offset, length) for offset, length in spans])


def _write(export: Export, asked: Asked, reply_bytes: int) -> bytes:
    del reply_bytes
    if not export.region.writable:
        raise RemoteAccessError(f"region {export.name!r} does not grant writing")
    export.region.write(*asked.write())
    return b""


def _check_atomic(export: Export) -> None:
    if not export.region.atomic:
        raise RemoteAccessError(f"region {export.name!r} does not grant atomic operations")


def _swap(export: Export, asked: Asked, reply_bytes: int) -> bytes:
    del reply_bytes
    _check_atomic(export)
    offset, expected, desired = asked.words(wire.SWAP)
    return wire.WORD.pack(export.region.compare_and_swap(offset, expected, desired))


def _add(export: Export, asked: Asked, reply_bytes: int) -> bytes:
    del reply_bytes
    _check_atomic(export)
    offset, value = asked.words(wire.ADD)
    return wire.WORD.pack(export.region.fetch_and_add(offset, value))


_EXECUTE: Final[dict[Operation, Any]] = {
    Operation.READ: _read,
    Operation.WRITE: _write,
    Operation.SWAP: _swap,
    Operation.ADD: _add,
}
