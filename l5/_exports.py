"""What a server exports, and its ends of memory links: regions by name, handles, revocation.

    Exports --- name --> Export (a region, its control word) <---+
       |                                                         |
       +------- connection's key --> OwnerLink -- handle --> grant

A server has a random identity, and every connection to it a random key; both are in its ServerHello
and come back in the ClientHello of the memory link.  So a link cannot reach another server that
took the address over (or a sibling that shares it), needs a connection, and ends with it.

Each export has a word in a page that its readers over shared memory have mapped: zero revokes, at
once and for everybody.  All others ask, and are refused.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from . import _memory_wire as wire
from ._errors import RemoteAccessError
from ._region import Region, shared_file
from .abc import GrantedRegion

if TYPE_CHECKING:
    from ._owner_link import OwnerLink
    from ._session import Session

__all__ = ["Export", "Exports"]

logger = logging.getLogger("l5.server")

INSTANCE_BYTES: Final = 16
KEY_BYTES: Final = 16
CONTROL_BYTES: Final = 4096
EXPORTS_MAX: Final = CONTROL_BYTES // 8


@attrs.define(eq=False)
class Export:
    """A region under a name."""

    name: str
    region: Region
    word: int
    """Offset of its control word."""
    value: int
    revoked: str = ""
    """Why, once it is."""
    on_close: Callable[[], object] = bool
    """What the region calls when it is closed."""

    def check(self) -> None:
        """Raise `RegionGone` when it is revoked."""
        if self.revoked:
            raise wire.RegionGone(self.revoked)


class Exports:
    """The exports and memory links of one server; for its event loop's thread alone."""

    def __init__(self) -> None:
        self.instance: bytes = secrets.token_bytes(INSTANCE_BYTES)
        self._by_name: dict[str, Export] = {}
        self._keys: set[bytes] = set()
        self._links: dict[bytes, OwnerLink] = {}
        self._control: tuple[int, Any] | None = None
        self._free_words = list(range(CONTROL_BYTES - 8, -8, -8))
        self._last_value = 0
        self._closed = False

    # ---- by name ------------------------------------------------------------------------------

    def add(self, name: str, region: Region) -> None:
        """Let peers open `region` by `name`."""
        wire.check_name(name)
        if self._closed:
            raise RuntimeError("this server has been stopped: nothing can be exported any more")
        if region.closed:
            raise ValueError(f"the region is closed and cannot be exported as {name!r}")
        if name in self._by_name:
            raise ValueError(f"a region is exported as {name!r} already: revoke it first")
        if not self._free_words:
            raise ValueError(f"{EXPORTS_MAX} regions are exported, which is the most: revoke one")
        if region.fileno() >= 0 and self._control is None:
            self._control = shared_file(CONTROL_BYTES, writable=False)
        self._last_value += 1
        export = Export(name, region, self._free_words.pop(), self._last_value)
        if self._control is not None:
            self._control[1].control(export.word, export.value)
        self._by_name[name] = export
        export.on_close = partial(self._revoke, export, "its owner has closed")
        region.on_close.append(export.on_close)
        logger.info("exporting %r as %r", region, name)

    def remove(self, name: str) -> None:
        """Revoke what is exported by `name`."""
        export = self._by_name.get(name)
        if export is None:
            raise ValueError(f"no region is exported as {name!r}")
        self._revoke(export, "its owner has revoked")

    def _revoke(self, export: Export, how: str) -> None:
        if export.revoked:
            return
        export.revoked = f"{how} region {export.name!r}"
        del self._by_name[export.name]
        if export.on_close in export.region.on_close:
            export.region.on_close.remove(export.on_close)
        self._free_words.append(export.word)
        if self._control is not None:
            self._control[1].control(export.word, 0)
        for link in list(self._links.values()):
            link.withdraw(export)

    def find(self, name: str) -> Export:
        """Return what is exported by `name`, or raise `RemoteAccessError`."""
        export = self._by_name.get(name)
        if export is None:
            raise RemoteAccessError(f"the server exports no region called {name!r}")
        return export

    def granted(self, handle: int, export: Export) -> GrantedRegion:
        """Return what a channel has to know to give access."""
        control_fd = -1 if self._control is None else self._control[0]
        return GrantedRegion(handle, export.region, control_fd, export.word, export.value)

    def close(self) -> None:
        """Revoke everything and end all links."""
        self._closed = True
        for export in list(self._by_name.values()):
            self._revoke(export, "its server has stopped, and with it")
        for link in list(self._links.values()):
            link.close()
        self._keys.clear()
        if self._control is not None:
            fd, memory = self._control
            self._control = None
            memory.close("the server has stopped")
            os.close(fd)

    # ---- links --------------------------------------------------------------------------------

    def identify(self) -> bytes:
        """Return what a new connection is told: who this server is, and a key of its own."""
        key = secrets.token_bytes(KEY_BYTES)
        self._keys.add(key)
        return self.instance + key

    def forget(self, identity: bytes) -> None:
        """Void a connection's key: it has ended, or came to nothing.  Its link ends."""
        key = identity[INSTANCE_BYTES:]
        self._keys.discard(key)
        link = self._links.pop(key, None)
        if link is not None:
            link.close()

    def objection(self, identity: bytes) -> tuple[str, str] | None:
        """Tell why a memory link is not wanted, as the code and text of a rejection."""
        if identity[:INSTANCE_BYTES] != self.instance:
            return "elsewhere", "this is another server than the one that was connected to"
        if identity[INSTANCE_BYTES:] not in self._keys:
            return "unauthorised", "the connection that this belongs to has ended"
        return None

    async def serve(self, identity: bytes, session: Session, owner: OwnerLink) -> None:
        """Serve a memory link until it ends; a new one of the same connection replaces it."""
        key = identity[INSTANCE_BYTES:]
        if key not in self._keys:  # it ended during the handshake
            session.close()
            return
        before = self._links.pop(key, None)
        if before is not None:
            before.close()
        self._links[key] = owner
        try:
            await owner.run(session)
        finally:
            if self._links.get(key) is owner:
                del self._links[key]
            session.close()
