"""The contracts of `l5`: what a transport gives and what the framework does with it.

A *bootstrap transport* (tcp, unix, inproc) makes a `Link`: a connection that carries the two
hellos and then turns into a frame `Channel`.  An *upgrade transport* (shm) replaces that channel
by a faster one, before the first user frame.  Everything above a `Channel` (requests,
segmentation, credit, cancellation, deadlines) exists once, in `l5._session`, so a third-party
transport consists of the few methods below and is tested by `l5.testing`.

Channels never wait.  They answer "not now" and are `Pollable`; the one wait loop of the event
loop (`l5._wait`) spins, arms, re-checks and sleeps for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import attrs

from ._memory_contracts import (
    GrantedRegion,
    MemoryChannel,
    OpenedRegion,
    Region,
    RegionLink,
    RemoteRegion,
    Span,
    Take,
)

if TYPE_CHECKING:
    import sys

    from ._address import Address
    from ._options import Options

    if sys.version_info >= (3, 12):
        from collections.abc import Buffer
    else:
        from typing_extensions import Buffer

__all__ = [
    "BootstrapTransport",
    "Channel",
    "Frame",
    "GrantedRegion",
    "Link",
    "LinkListener",
    "MemoryChannel",
    "OpenedRegion",
    "PeerInfo",
    "Pollable",
    "Probe",
    "Region",
    "RegionLink",
    "RemoteRegion",
    "Span",
    "Take",
    "Transport",
    "UpgradeTransport",
]


@attrs.frozen
class Probe:
    """Say whether a transport can be used in this process, and if not, why."""

    usable: bool
    reason: str = ""
    """Empty when usable; else one sentence that names what is missing and what to do."""
    details: Mapping[str, object] = attrs.field(factory=dict[str, object])


@attrs.frozen
class PeerInfo:
    """What is known about the process at the other end."""

    address: str
    """The peer's address as text; for a Unix socket its path or ``@name``, often empty."""
    uid: int | None = None
    """Effective uid by the kernel's word (`SO_PEERCRED`); None where the kernel does not say."""
    pid: int | None = None
    """Process id by the kernel's word; None if unknown or in another pid namespace."""
    loopback: bool = False
    """True when the connection cannot have left this host."""
    tls: bool = False


class Frame(NamedTuple):
    """One frame as a channel delivers it; `payload` is a private copy."""

    kind: int
    flags: int
    id: int
    payload: bytes


class Pollable(ABC):
    """Something that can be polled, and slept on once it agreed to wake us.

    The rule (as in verbs and UCX): poll; `arm`; if `arm` refuses, poll again; only after it
    agreed sleep on `fileno`.  Whoever is armed gets at least one readable event for anything
    that arrives afterwards.
    """

    @abstractmethod
    def poll(self) -> bool:
        """Tell, without a system call where possible, whether there is something to receive."""

    @abstractmethod
    def arm(self, *, space: bool = False) -> bool:
        """Ask to be woken; return False (refused) if there is already something to do.

        With `space`, room for sending counts as something to do, too.
        """

    @abstractmethod
    def disarm(self) -> None:
        """Take `arm` back: called after waking and before polling on."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when an armed object has something."""


class Channel(Pollable):
    """Carry whole frames between two processes, in order, without ever waiting.

    A channel belongs to one thread.  A frame is accepted whole or not at all.  Errors: a peer
    that breaks the protocol gives `RemoteProtocolError`; one that is gone gives
    `anyio.BrokenResourceError` (from `try_send`) or `anyio.EndOfStream` (from `try_receive`,
    after everything that it sent before has been delivered).
    """

    transport: str
    """Name of the transport, e.g. ``"shm"``."""
    one_copy: bool = False
    """True for memory shared with the peer (leases and reservations are in place)."""
    frame_limit: int | None = None
    """Most payload bytes of one frame that the channel carries; None: whatever was agreed."""
    mode: str = ""
    """How it tells of a message, where both ends agree on one of several ways."""

    @property
    def wants_write(self) -> bool:
        """Tell whether accepted bytes wait for the descriptor to become writable."""
        return False

    @abstractmethod
    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        """Send one frame, or return False when there is no room for it now.

        `payload` is at most the peer's ``segment_bytes`` long and is not kept.
        """

    def carry(self, kind: int, flags: int, id: int, payload: bytes) -> bool:
        """Take a short frame that need not go alone; False if it should be sent as others are.

        It goes with whatever is said next to the peer, and a later one takes its place.  False is
        said, too, when the one before has waited until now: this one waits in its place, unless it
        is sent by `try_send` after all.
        """
        return False

    @abstractmethod
    def try_receive(self) -> Frame | None:
        """Return the next frame, or None if none is complete."""

    def lifelines(self) -> tuple[int, ...]:
        """Give up descriptors that become readable when the peer has gone, beside `fileno`.

        Asked once; whoever asks watches them and closes them after the channel.
        """
        return ()

    def on_event(self) -> None:
        """Take notice that `fileno` was readable (drain a doorbell); may raise `EndOfStream`."""

    def flush(self) -> bool:
        """Push out accepted bytes; return True when none are left."""
        return True

    def part(self) -> bool:
        """Stop sending and throw away what arrives; True when closing now loses nothing.

        For transports where closing can take from the peer what it has not got yet.
        """
        return True

    @abstractmethod
    def close(self) -> None:
        """Release memory and descriptors at once; never waits, may be called twice."""

    def forget(self) -> None:
        """(In a forked child) close the child's copies without a word to the peer."""
        self.close()


class Link(ABC):
    """A bootstrap connection: bytes (and descriptors) for the hellos, then a channel.

    Its methods are the only ones of a transport that wait.  All honour cancellation; after a
    cancelled or failed call only `abort` may follow.
    """

    transport: str
    peer: PeerInfo

    @abstractmethod
    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send all of `data`; with `fds`, pass these descriptors along with its first byte."""

    @abstractmethod
    async def receive(self, max_bytes: int) -> tuple[bytes, list[int]]:
        """Receive 1 to `max_bytes` bytes and any descriptors (owned by the caller from then on).

        Raises `anyio.EndOfStream` when the peer closed.  Never reads beyond `max_bytes`, so that
        nothing of the next phase is swallowed.
        """

    @property
    @abstractmethod
    def passes_fds(self) -> bool:
        """Tell whether `send` can pass descriptors."""

    @property
    def local_host(self) -> str | None:
        """Return the IP address of this end; None where there is none."""
        return None

    def let_fds_in(self, allowed: bool) -> None:
        """Let the peer pass descriptors from now on, or no more, where the system can tell it so.

        Whoever does not wait for any should say so: closing one can wait for the peer.
        """
        del allowed

    @abstractmethod
    def into_channel(self, *, send_limit: int, receive_limit: int) -> Channel:
        """Turn into a frame channel; the link must not be used afterwards.

        `send_limit` and `receive_limit` bound the payload of one frame in bytes.
        """

    @abstractmethod
    def detach(self) -> int:
        """Give up the socket's descriptor to an upgrade; `ValueError` where it cannot be had."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""


class LinkListener(ABC):
    """Accept links."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL at which clients reach this listener (with the real port)."""

    @abstractmethod
    async def accept(self) -> Link:
        """Wait for the next link; `anyio.ClosedResourceError` once closed."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening and remove what was put into the file system; may be called twice."""


class Transport(ABC):
    """What every entry point of the group ``l5.transports`` names: a class without arguments."""

    name: ClassVar[str]

    @abstractmethod
    def probe(self) -> Probe:
        """Tell whether this transport can be used here; cheap, no side effects."""


class BootstrapTransport(Transport):
    """A transport that can carry the hellos."""

    @abstractmethod
    async def connect(self, address: Address, options: Options) -> Link:
        """Open a link to `address`; `OSError` or `TransportUnavailable` when it cannot be had."""

    @abstractmethod
    async def listen(self, address: Address, options: Options) -> LinkListener:
        """Listen at `address`; `OSError` with a helpful text when it cannot be had."""


class UpgradeTransport(Transport):
    """A transport that takes over from a bootstrap link on which both ends have agreed."""

    needs_fds: ClassVar[bool] = True
    """Descriptors are passed: over TCP the two ends first have to meet at a Unix socket."""

    @abstractmethod
    def offer(self, link: Link, options: Options) -> Mapping[str, int | str | bytes | bool]:
        """(Client) return the parameters of an offer; `TransportUnavailable` says why not."""

    @abstractmethod
    def judge(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Options
    ) -> str | None:
        """(Server) return None when the offer can be taken, else the reason why not."""

    def memory_bytes(self, params: Mapping[str, int | str | bytes | bool]) -> int:
        """(Server) return how much memory a connection with these parameters would share.

        It counts against the server's ``total_shared``; 0 for a transport that shares none.
        """
        del params
        return 0

    @abstractmethod
    def initiate(
        self, link: Link, params: Mapping[str, int | str | bytes | bool], options: Options
    ) -> UpgradeAttempt:
        """(Client) make the resources and send what the server needs to join.

        `TransportUnavailable` leaves the link as it was (nothing was sent).
        """

    @abstractmethod
    def join(
        self,
        link: Link,
        params: Mapping[str, int | str | bytes | bool],
        fds: Sequence[int],
        options: Options,
    ) -> UpgradeAttempt:
        """(Server) check and take what the client sent; always disposes of `fds`.

        `TransportUnavailable` declines: the connection stays on the socket.
        """

    def for_memory(self) -> UpgradeTransport | None:
        """Return what takes this one's place when a memory link is made; None: nothing does.

        Its channels are `MemoryChannel`s, see there (`l5._memory_contracts`).
        """
        return None


@attrs.frozen
class UpgradeMessage:
    """What `UpgradeTransport.initiate` wants sent: parameters and descriptors."""

    params: Mapping[str, int | str | bytes | bool]
    fds: Sequence[int]


class UpgradeAttempt(ABC):
    """An upgrade half done: resources exist, the other end has not confirmed yet."""

    message: UpgradeMessage
    """What to send to the other end; the server's has parameters only, no descriptors."""
    verifies: ClassVar[bool] = False
    """Both ends `verify` before they switch; the same on both."""

    async def verify(self, link: Link, answer: Mapping[str, int | str | bytes | bool]) -> None:
        """Show that the way works, with the link still there to fall back to.

        Called at both ends at once, after both have sent their `message`; `answer` is what the
        server sent (empty on the server).  The client's verdict counts: the server's call is
        cancelled when it is known.  `TransportUnavailable` says why it does not work; then
        `abandon` follows and the connection stays on the socket.
        """
        del link, answer

    @abstractmethod
    def complete(self, link: Link, *, send_limit: int, receive_limit: int) -> Channel:
        """Switch: take the link's socket over and return the channel."""

    @abstractmethod
    def abandon(self) -> None:
        """Give everything back; the link stays as it is."""
