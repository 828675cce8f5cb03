"""The contracts of remote memory; public as `l5.abc`.

Whoever owns memory grants it (`Region`), whoever is connected to the owner opens it by name
(`RemoteRegion`).  Beside the connection that a user has runs a *memory link*: a second, small
connection to the same server, made by the first `Connection.open_region`.  Over it the client asks
for regions and the owner answers, and its end is the end of every region that came over it.

How a transport takes part.  Without doing anything: operations are then requests over the memory
link, which the owner executes (`l5._memory.EmulatedRegion`).  With access of its own, an upgrade
transport returns from `UpgradeTransport.for_memory` an upgrade transport for memory links.  That
one is negotiated, by the usual handshake and under the usual name, while a memory link is made, and
the channel that it returns carries the link's frames and is a `MemoryChannel` besides:

    client                                              owner
    request "open `name` as handle h"      ------->
                                                        channel.grant(GrantedRegion) -> params
    channel.reach(OpenedRegion)            <-------     size, rights, params
    RemoteRegion: its own reads and writes ........>    (nothing: one-sided)
    request "close h"                      ------->     channel.withdraw(h)
                                                        revoked, closed, stopped: withdraw(h)

Shared memory passes the region's descriptor that way, RDMA registers memory in the link's own
protection domain and answers with address and key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio.abc
import attrs

if TYPE_CHECKING:
    from ._wait import Hub
    from .abc import Buffer

__all__ = [
    "GrantedRegion",
    "MemoryChannel",
    "OpenedRegion",
    "Region",
    "RegionLink",
    "RemoteRegion",
    "Span",
    "Take",
]

Span = tuple[int, int]
"""(offset, length), in bytes."""

Take = Callable[[int, bytes], "Iterable[Span] | None"]
"""``take(offset, data)``: called with each part as it arrives; may return more spans to read."""


class Region(ABC):
    """Memory of this process that peers may read, or read, write and do atomics on.

    Readable always; `writable` and `atomic` say what is granted besides, to all who can open it.
    It is one block of `size_bytes`; what it holds, and by which protocol it is read and written at
    the same time, is the application's business (`l5` offers versioned pages).
    """

    size_bytes: int
    writable: bool
    """Peers may write."""
    atomic: bool
    """Peers may do `compare_and_swap` and `fetch_and_add`."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Tell whether it has been closed."""

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """A writable view of the whole region, for its owner; it keeps the memory alive."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor of its memory, for mapping it; -1 where there is none."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Copy `length` bytes: forward, and each aligned word of 8 bytes whole."""

    @abstractmethod
    def write(self, offset: int, data: Buffer) -> None:
        """Write `data`: forward, and each aligned word of 8 bytes whole."""

    @abstractmethod
    def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """Replace the aligned word at `offset` if it is `expected`; return what was there."""

    @abstractmethod
    def fetch_and_add(self, offset: int, value: int) -> int:
        """Add to the aligned word at `offset`, modulo 2**64; return what was there."""

    @abstractmethod
    def close(self) -> None:
        """Revoke it everywhere and give its memory back (once no view is left); may be repeated."""


class RemoteRegion(anyio.abc.AsyncResource):
    """A peer's region, as `Connection.open_region` returns it.

    Offsets and lengths are in bytes, words have 8 and are little-endian.  Every operation raises
    `RemoteAccessError` when it is out of bounds or not granted (nothing was changed), and when the
    region is not there any more: revoked or closed by its owner, closed here, or its connection has
    ended, by whatever cause; the text says which.  Operations that are under way then end so, too.

    A copy is not a snapshot: aligned words are whole, and come in ascending order (over RDMA in any
    order); all else is up to the application's protocol.  Atomics are atomic with each other and
    with the owner's; over RDMA only with those of other clients that use the same device of the
    owner's.  An operation that is cancelled may have been executed.
    Any number of tasks of the connection's event loop may use it at once.
    """

    name: str
    size_bytes: int
    writable: bool
    """The owner grants `write` (and, in a `mapping`, everything)."""
    atomic: bool
    """The owner grants `compare_and_swap` and `fetch_and_add`."""
    one_sided: bool
    """Reads go to the owner's memory without the owner's CPU."""
    emulated_because: str = ""
    """Empty when `one_sided`; else why the owner has to execute what is asked for."""
    in_order: bool = False
    """The spans of one `read_many` are read one after the other, in their order."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Tell, without asking anybody, whether it is known to have ended."""

    @property
    @abstractmethod
    def mapping(self) -> memoryview | None:
        """A view of the owner's memory itself (read-only unless `writable`); None if there is none.

        For code, in C say, that follows the application's protocol by itself.  It does not notice
        revocation (look at `closed`, or read a byte), but can never do harm: while a view exists
        the memory stays mapped, also after `aclose`.
        """

    @abstractmethod
    async def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on."""

    @abstractmethod
    def read_now(self, offset: int, length: int) -> bytes:
        """Do as `read`, at once; `RemoteAccessError` unless there is a `mapping`.

        For loops of many short reads: it neither lets other tasks run nor honours cancellation, and
        notices that the owner has *died* only after others have (revocation it notices).
        """

    @abstractmethod
    async def read_many(self, spans: Sequence[Span]) -> list[bytes]:
        """Read several ``(offset, length)``, many of them in flight; return them in their order."""

    @abstractmethod
    async def read_each(self, spans: Iterable[Span], take: Take, *, window: int = 16) -> None:
        """Read spans and hand each to ``take(offset, data)`` as it arrives, in any order.

        Spans that `take` returns are read as well: so a tree is walked with `window` reads in
        flight, and no task each.  Ends when nothing is left; what `take` raises ends it at once.
        """

    @abstractmethod
    async def write(self, offset: int, data: Buffer) -> None:
        """Write `data`; returns when it is in the owner's memory."""

    @abstractmethod
    async def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        """Replace the word at `offset` (a multiple of 8) if it is `expected`; return the old."""

    @abstractmethod
    async def fetch_and_add(self, offset: int, value: int) -> int:
        """Add to the word at `offset`, a multiple of 8, modulo 2**64; return what was there."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of it; the connection and its other regions go on.  May be called twice."""


# ---- what transports implement ------------------------------------------------------------------


class RegionLink(Protocol):
    """A memory link as the client's regions see it."""

    hub: Hub
    strict: bool
    """The connection's option: every call is a checkpoint."""

    def check(self) -> None:
        """Raise `RemoteAccessError`, with the reason, unless the link is up."""
        ...

    async def request(self, payload: bytes) -> bytes:
        """Send an operation to the owner and return its answer; `RemoteAccessError` as above."""
        ...

    async def begin(self, payload: bytes) -> Any:
        """Send an operation; what is returned goes to `finish`, or to `abandon`."""
        ...

    async def finish(self, begun: Any) -> bytes:
        """Wait for the answer of an operation; cancelled, it is abandoned."""
        ...

    def abandon(self, begun: Any) -> None:
        """Lose interest in the answer."""
        ...

    def fail(self, error: Exception) -> None:
        """End the link: the owner has answered what makes no sense."""
        ...

    async def release(self, region: RemoteRegion) -> None:
        """Tell the owner that a region is closed here, and forget it."""
        ...


@attrs.frozen
class GrantedRegion:
    """(Owner) a region that a peer opens."""

    handle: int
    """What the peer calls it, unique on this link."""
    region: Region
    control_fd: int
    """A file of one page; -1 where there is no shared memory."""
    control_offset: int
    """Of a word in that file, which has `control_value` until the region is revoked, then zero."""
    control_value: int


@attrs.frozen
class OpenedRegion:
    """(Client) what the owner has granted."""

    name: str
    handle: int
    size_bytes: int
    writable: bool
    atomic: bool
    params: Mapping[str, int | str | bytes | bool]
    """What the owner's `MemoryChannel.grant` returned; anything, if the owner is hostile."""
    link: RegionLink
    reply_bytes: int
    """Most data bytes that the owner puts into one answer, or takes in one request."""
    emulated_because: str = ""


class MemoryChannel(ABC):
    """A channel of a memory link by which regions can be reached without requests."""

    @abstractmethod
    def grant(self, granted: GrantedRegion) -> Mapping[str, int | str | bytes | bool]:
        """(Owner) make a region accessible; return what the peer needs to know for that.

        What has to travel beside frames (a descriptor) does so before any later frame.
        `TransportUnavailable` leaves it to emulation, with the reason.
        """

    @abstractmethod
    def withdraw(self, handle: int) -> None:
        """(Owner) end what `grant` began: returns when no access can come any more.

        Called once for each grant, by the peer's wish or by revocation.  Where this cannot be had
        for one region alone, close the channel.
        """

    @abstractmethod
    def reach(self, opened: OpenedRegion) -> RemoteRegion:
        """(Client) return the region; `TransportUnavailable` leaves it to emulation.

        Check everything that the owner says.  `l5._memory.BaseRegion` has what all have in common.
        When the link ends, its ``end(reason)`` is called, once; nothing is to be waited for there.
        """
