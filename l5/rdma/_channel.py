"""What both ends of a mailbox have in common: the channel, its frames, its sleep and its end.

How a side sleeps (modes with immediates): it polls; tells the peer what it owes; arms its
completion queue; polls *again*, completions and memory; and only then waits for the queue's
descriptor.  In the mode `flags` nothing can wake it, so the event loop looks again after a nap.

What the device refuses ends this connection, and says why; an event loop that looks at it, arms it
or has it pay what it owes hears of no exception.
"""

from __future__ import annotations

import os
import socket
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from .._errors import MessageTooLarge, RemoteProtocolError
from .._frames import Kind
from ..abc import Channel, Frame
from . import verbs

if TYPE_CHECKING:
    from ..abc import Buffer
    from ._end import Counters, End

FLAGS: Final = "flags"
FLAGS_IMM: Final = "flags+imm"
IMM: Final = "imm"
MODES: Final = (FLAGS, FLAGS_IMM, IMM)
"""Each trusts less, or wants more, than the one before: of two ends' modes the later one holds."""
REFUSALS: Final = (verbs.VerbsError, OSError)
"""What a device, or the system that gives it memory, says no by."""


class MailboxChannel(Channel):
    """One end; see `l5.rdma._mailbox` for the protocol."""

    transport = "rdma"

    def __init__(self, end: End, receives: int) -> None:
        self._set_mode(FLAGS_IMM)
        self._end = end
        self._frames: deque[tuple[int, int, int, bytes]] = deque()
        self._send_limit = self._receive_limit = 0
        self._receives_most = receives
        self._immediates = 0
        """Taken into account: receives were posted anew for them."""
        self._session: Any = None
        self._poller: Any = None
        self._socket: socket.socket | None = None
        self._life = -1
        self._pid = os.getpid()
        self._closed = False
        self._parting = False
        self._fault: RemoteProtocolError | None = None
        """What the peer did wrong, found where nobody could be told."""

    def _set_mode(self, mode: str) -> None:
        self.mode: str = mode
        self.with_imm: bool = mode != FLAGS
        self.in_memory: bool = mode != IMM
        self.naps: bool = mode == FLAGS
        """Nothing wakes it: the event loop has to look from time to time."""

    def _begin(self, mode: str, remote: verbs.QueuePairAddress) -> None:
        """Connect; receives are posted before, so that no immediate comes too early."""
        self._set_mode(mode)
        self._end.post_receives(self._receives_most if self.with_imm else 0)
        self._end.connect(remote)

    @property
    def counters(self) -> Counters:
        """What this end did."""
        return self._end.counters

    def take_socket(self, sock: socket.socket, send_limit: int, receive_limit: int) -> None:
        """Begin to carry a connection's frames; the socket is its sign of life."""
        self._socket = sock
        self._receive_limit = receive_limit
        self._send_limit = min(send_limit, self.frame_limit or send_limit)

    def lifelines(self) -> tuple[int, ...]:
        sock, self._socket = self._socket, None
        if sock is None:
            return ()
        self._life = sock.detach()
        return (self._life,)

    def _peer_left(self) -> bool:
        """Tell whether the peer has closed its socket."""
        try:
            with socket.socket(fileno=os.dup(self._life)) as sock:
                return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # ---- for the two ends -----------------------------------------------------------------------

    @abstractmethod
    def _advance(self) -> None:
        """Take what has arrived, until there is a frame or nothing more."""

    @abstractmethod
    def _has_arrived(self) -> bool:
        """Tell whether something may have arrived that `_advance` would take."""

    @abstractmethod
    def _has_space(self) -> bool:
        """Tell whether a sender that was refused should try again."""

    @abstractmethod
    def _accept(self, frame: tuple[int, int, int, memoryview], size: int) -> bool:
        """Send, or take for sending, a frame that is not too long."""

    @abstractmethod
    def _settle(self) -> bool:
        """Do what `settle` says; it may raise what the device does."""

    @abstractmethod
    def _unsent(self) -> bool:
        """Tell whether something that was accepted has not been posted."""

    # ---- Channel --------------------------------------------------------------------------------

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        view = memoryview(payload).cast("B")
        size = len(view)
        if size > self._send_limit:
            raise MessageTooLarge(size, self._send_limit)
        self._check()
        if self._end.broken:
            raise anyio.BrokenResourceError(self._end.broken)
        try:
            return self._accept((kind, flags, id, view), size)
        except REFUSALS as error:
            self._end.fail(str(error))
            raise anyio.BrokenResourceError(str(error)) from error

    def try_receive(self) -> Frame | None:
        frames = self._frames
        if not frames:
            self._check()
            self._look()
            if not frames:
                if self._fault is not None:
                    raise self._fault
                if not self._end.broken:
                    return None
                raise anyio.EndOfStream(self._end.broken)
        return Frame(*frames.popleft())

    def _look(self) -> None:
        """Take what has arrived; of a broken queue pair the last of it may still come."""
        if self._end.broken:
            self._end.poll()
        try:
            self._advance()
        except REFUSALS as error:
            self._end.fail(str(error))

    @property
    def trouble(self) -> str:
        """Why nothing can be sent any more; empty if it can."""
        return self._end.broken

    def settle(self) -> bool:
        """Tell the peer what it is owed; True when nothing is owed (any more).

        Never raises: if that cannot be sent, the connection is over, and its session finds out.
        """
        try:
            return self._settle()
        except REFUSALS as error:
            self._end.fail(str(error))
            if self._session is not None:
                self._session.hub.touch(self._session)
            return True

    def _check(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._pid != os.getpid():
            raise anyio.ClosedResourceError(
                "this connection belongs to the parent process: connect again after fork"
            )

    def _is_final(self, kind: int) -> bool:
        """Tell whether a frame may be the last one, so that its completion is waited for."""
        return kind in (Kind.CLOSE, Kind.ERROR)

    def _repost(self) -> None:
        """Post as many receives anew as immediates have completed, once they are many."""
        if 4 * (self._end.arrived - self._immediates) >= self._receives_most:
            count = self._end.arrived - self._immediates
            self._immediates += count
            self._end.post_receives(count)

    # ---- Pollable -------------------------------------------------------------------------------

    def poll(self) -> bool:
        return bool(self._frames or self._end.broken or self._fault) or self._has_arrived()

    def arm(self, *, space: bool = False) -> bool:
        if self._something(space):
            return False
        self.settle()
        end = self._end
        try:
            end.queue.arm()
        except verbs.VerbsError as error:
            end.fail(str(error))
            return False
        end.poll()
        self._repost()
        if self._something(space):
            return False
        self.counters.sleeps += 1
        return True

    def _something(self, space: bool) -> bool:
        if self._frames or self._end.broken or self._fault or self._has_arrived():
            return True
        return space and self._has_space()

    def disarm(self) -> None:
        """Do nothing: an event that comes for nothing is drained by `on_event`."""

    def fileno(self) -> int:
        return self._end.queue.fileno()

    def on_event(self) -> None:
        try:
            self._end.queue.drain_events()
        except verbs.VerbsError as error:
            self._end.fail(str(error))
            return
        self._end.poll()
        self._repost()  # what is owed is paid by an answer, or when it comes to sleeping again

    # ---- membership of an event loop ------------------------------------------------------------

    def attach(self, poller: Any, session: Any) -> None:
        """Have an event loop's poller look at this memory, for a session."""
        self._poller, self._session = poller, session

    def detach(self) -> None:
        """Have it look no more."""
        self._poller = self._session = None

    # ---- ends -----------------------------------------------------------------------------------

    def flush(self) -> bool:
        return True

    def part(self) -> bool:
        """See `Channel.part`: what was accepted is posted, and all that was posted completed."""
        if self._closed or self._pid != os.getpid():
            return True
        end = self._end
        try:
            end.poll()
            while not end.broken:
                self._frames.clear()
                self._advance()
                if not self._frames:
                    break
            self._settle()
            if end.broken or self._peer_left():
                return True
            if self._unsent():
                return False
            if not self._parting and end.slots.outstanding and end.room(1):
                # A write of nothing: it completes after all that went before it.
                self._parting = True
                self._post_nothing(end.slots.take(1, verbs.SIGNALED))
        except (*REFUSALS, RemoteProtocolError) as error:
            end.fail(str(error))
            return True
        return end.drained()

    @abstractmethod
    def _post_nothing(self, flags: int) -> None:
        """Post a write of no bytes."""

    def close(self) -> None:
        if self._closed:
            return
        self.detach()
        self._closed = True
        self._frames.clear()
        self._release()
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _release(self) -> None:
        """Give all resources back."""
        self._end.close()

    def forget(self) -> None:
        """See `Channel.forget`: the device, the queues and the memory are the parent's."""
        self._poller = self._session = None
        self._closed = True
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
