"""One connection's protocol engine: what arrives is sorted, what is due is sent; nothing waits.

A `Session` owns a `Channel` and gives meaning to its frames.  It is a hub's endpoint: the hub
calls `on_ready` when there may be frames, `on_event` when a descriptor has news, and `arm` before
it sleeps.  Everything that waits (`l5._connection`, `l5._serve`) tries, and parks in the hub when
the session says "not now".

States: OPEN; ENDED (the peer closed; what it sent before can still be received); BROKEN (with the
error that did it); CLOSED (by us).
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

from . import _attach
from ._arrivals import DISPATCH, take_answers
from ._errors import GONE, LocalProtocolError, RemoteProtocolError, as_broken
from ._flow import Budget, Credit, Reassembly, window_of
from ._frames import COUNTER, DEADLINE, Flag, Kind, pack_error
from ._last_words import say, tell_fault
from ._live import add_session
from ._requests import RequestTable
from ._statistics import SessionCounters

if TYPE_CHECKING:
    from ._bootstrap import Established
    from ._fast import Lane, Ring
    from ._handler import RequestServer
    from ._hello import Limits
    from ._options import Options
    from ._selector import UpgradeReport
    from ._wait import Hub, Waiter
    from .abc import Channel, PeerInfo

logger = logging.getLogger("l5.session")

CONTROL_MIN = 1024
LEAVE_TURNS = 4  # at once, for the last words of a peer that is gone; usually that is all
_EXPECTED = (OSError, RemoteProtocolError, LocalProtocolError, anyio.BrokenResourceError)
LONG_BYTES = 16384  # of such messages a turn takes one: copying costs more than the turn
_DATA = int(Kind.DATA)
_FOR_RESPONSE, _EMPTY = int(Flag.FOR_RESPONSE), b""


class Session(SessionCounters):
    """See the module's docstring."""

    def __init__(
        self,
        hub: Hub,
        made: Established,
        options: Options,
        budget: Budget,
        server: RequestServer | None = None,
    ) -> None:
        self.hub: Hub = hub
        self.channel: Channel = made.channel
        self.sends: Limits = made.sends
        self.takes: Limits = (takes := made.takes)
        self.peer: PeerInfo = made.peer
        self.report: UpgradeReport = made.report
        self.ring: Ring | None = getattr(made.channel, "ring", None)
        self.lane: Lane | None = _attach.lane_of(hub, made.channel)
        """The short way of small requests, on a plain socket (`native/_lane.h`)."""
        self.short: Any = None if options.strict else self.ring or self.lane  # see `l5._doze`
        self.state: str = "OPEN"
        self.error: Exception | None = None
        self.server: RequestServer | None = server
        self.requests: RequestTable = RequestTable()
        self.inbox: deque[bytes] = deque()
        self.receiver: Waiter | None = None
        self.behind: bool = False  # (no ring) a long message: there may be more behind it
        self.senders: dict[Waiter, None] = {}
        """Who waits for room in the channel."""
        self.patient: dict[Waiter, None] = {}
        """Who waits for credit or for an answer before it may send at all."""
        self.credits: dict[tuple[bool, int], Credit] = {}
        self.on_close: list[Callable[[], None]] = []
        self.frames_sent: int = 0
        self.frames_received: int = 0
        self.strict: bool = options.strict
        self.close_timeout: float = options.close_timeout
        self.eof_sent: bool = False
        self.untaken: int = 0
        """Messages at the head of the inbox that were given back: they are paid for."""
        self.peer_done: bool = False
        """The peer said that it sends nothing more, but still receives."""
        self.partial_requests: dict[int, int] = {}
        self._control: deque[tuple[int, int, int, bytes]] = deque()
        self._control_max = 4 * takes.in_flight_max + CONTROL_MIN
        self._fds = (made.channel.fileno(), *made.watched)
        self._attached, self._released, self._keep_channel = True, False, False
        self.leaving: Exception | None = None
        """Why the connection ends once the last words of a peer that is gone are received."""
        self._words_left, self._silent = 0.0, 0
        self.reassembly: Reassembly = Reassembly(
            message_limit=takes.max_message_bytes + DEADLINE.size,
            credit_bytes=takes.credit_bytes,
            partials_max=takes.in_flight_max + 16,
            budget=budget,
            grant=self.grant,
            cut=self.fail,
        )
        self.window: Any = window_of(self.ring or self.lane, self.sends, self.takes)
        self._attach(options)

    def _attach(self, options: Options) -> None:
        _attach.attach(self, options)
        try:
            self.hub.attach(self)
        except OSError:  # a limit of this process
            _attach.detach(self)
            self.release()
            raise
        add_session(self)

    def __repr__(self) -> str:
        return f"<Session {self.channel.transport} {self.state} peer={self.peer.address!r}>"

    # ---- hub's `Endpoint` ----------------------------------------------------------------------

    def fds(self) -> tuple[int, ...]:
        return self._fds

    def wants_write(self) -> bool:
        return self.channel.wants_write

    def on_event(self, fd: int, readable: bool, writable: bool) -> None:
        if fd != self._fds[0]:
            # The peer's process has ended, even if a forked child of it holds the socket open.
            self.leave(anyio.BrokenResourceError("the peer's process has ended"))
            return
        try:
            self.channel.on_event()
        except anyio.EndOfStream:
            self.leave(anyio.BrokenResourceError(GONE))
            return
        except Exception as error:
            self.fail(error)
            return
        if writable:
            self.flush()
        self.on_ready()

    def leave(self, error: Exception) -> None:
        """End with `error` once what the peer sent before it went away has been received.

        Who shares its ring may write on: no more than a ring holds is taken, and a turn's worth at
        a time, so that a ring full of small frames does not hold up the loop.
        """
        if self.state == "OPEN" and self.leaving is None:
            self.leaving = as_broken(error)
            self.window.in_flight_max = self.window.data_allowed = 0  # the hot path sends no more
            held = (self.channel.frame_limit or 0) * 4 // 64  # a frame is a quarter of a ring
            self._words_left = held if self.ring is not None and held else math.inf
            if self.server is not None:  # what it asked is nobody's business any more
                self.fail(self.leaving)
        for _ in range(LEAVE_TURNS):
            self.on_ready()
        if self.state == "OPEN":
            self.hub.touch(self)

    def _hear_last_words(self, frames: int, error: Exception) -> None:
        """End when the peer that is gone was silent twice: a channel may say "none" too often."""
        self._silent = 0 if frames else self._silent + 1
        self._words_left -= frames
        if self._silent >= 2 or self._words_left <= 0:
            self.fail(error)

    def arm(self) -> bool:
        if self.state not in ("OPEN", "ENDED"):
            return True
        self.flush_control()
        try:
            if self.leaving is not None:
                return False  # there may be more to receive
            return self.channel.arm(space=bool(self.senders or self._control))
        except Exception as error:
            self.fail(error)
            return False

    def on_ready(self, frames: int | None = None) -> None:
        """Receive and sort what there is, a bounded number of frames."""
        if self.state != "OPEN":
            return
        channel, before = self.channel, self.frames_received
        try:
            if self.ring is not None and self.server is None and take_answers(self, frames):
                return
            for _ in range(frames or self.hub.turn_frames):
                frame = channel.try_receive() if self.state == "OPEN" else None
                if frame is None:
                    break
                self.frames_received += 1
                DISPATCH[frame[0]](self, frame[1], frame[2], frame[3])
                if len(frame[3]) >= LONG_BYTES and frame[0] == _DATA and self.inbox:
                    self.behind = self.ring is None
                    break  # who receives takes what is behind it from the channel, one by one
        except anyio.EndOfStream as end:  # who has words for it says them
            self.fail(self.leaving or anyio.BrokenResourceError(*end.args or (GONE,)))
        except Exception as error:
            self.fail(error)
        else:
            self.flush_control()
            self.wake_first()
            if self.leaving is not None and self.state == "OPEN":
                self._hear_last_words(self.frames_received - before, self.leaving)
        self.hub.streak += self.frames_received - before

    def feed(self, data: bytes, error: int) -> None:
        """(The lane) take what it read and does not understand, or why it could not read."""
        channel: Any = self.channel
        channel.feed(data, error)
        self.hub.touch(self)

    def hear(self, payload: bytes) -> None:
        """(The lane) take note of a heartbeat."""
        if self.heard is not None:
            self.heard.hear(payload)

    def keep_rest(self, data: bytes) -> None:
        """(The lane) send what the socket did not take of a frame."""
        channel: Any = self.channel
        channel.keep_rest(data)
        self.hub.touch(self)

    def wake_first(self) -> None:
        """Let who waits longest for room try again."""
        if self.senders:
            next(iter(self.senders)).wake()

    # ---- sending -------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise what a send has to raise unless the session is open."""
        error = self.error or self.leaving
        if error is None:
            return
        if self.state == "CLOSED":  # with the reason: by ourselves, or by a fork
            raise anyio.ClosedResourceError(*error.args)
        if isinstance(error, RemoteProtocolError | LocalProtocolError):
            raise error.with_traceback(None)  # else it would grow with every time
        raise anyio.BrokenResourceError(*error.args or ("the peer has closed",)) from error

    def try_frame(self, kind: int, flags: int, id: int, payload: Any) -> bool:
        """Send a frame of a message; control frames that wait go first."""
        self.check_open()
        if self._control and not self.flush_control():
            return False
        try:
            sent = self.channel.try_send(kind, flags, id, payload)
        except Exception as error:
            self.lose(error)
            self.check_open()  # the peer may have said why it left
            raise
        if sent:
            self.frames_sent += 1
            if self.channel.wants_write:
                self.hub.touch(self)  # the rest goes out by itself, even if nobody waits for it
        return sent

    def post(self, kind: int, flags: int, id: int, payload: bytes = _EMPTY) -> None:
        """Send a control frame, now or as soon as there is room; their number is bounded."""
        if self.state != "OPEN" or self.leaving is not None:
            return
        if len(self._control) > self._control_max + len(self.requests):
            self.fail(RemoteProtocolError("the peer does not take the answers to what it sends"))
            return
        self._control.append((kind, flags, id, payload))
        if not self.flush_control() or self.channel.wants_write:
            self.hub.touch(self)

    def flush_control(self) -> bool:
        """Send what control frames wait; return True when none are left."""
        if self.window.credit_owed and self.state == "OPEN":
            self._owe_data_credit()
        control = self._control
        try:
            while control and self.state == "OPEN" and self.leaving is None:
                if not self.channel.try_send(*control[0]):
                    return False
                control.popleft()
        except Exception as error:
            self.lose(error)
        return True

    def flush(self) -> bool:
        """Push out what the channel accepted; return True when none is left, or all is lost."""
        try:
            return self.channel.flush()
        except Exception as error:
            self.lose(error)
            return True

    def lose(self, error: Exception) -> None:
        """Break because sending failed, after receiving what a peer that left sent before."""
        if isinstance(error, RemoteProtocolError | LocalProtocolError):
            self.fail(error)
        elif self.leaving is None:
            self.leave(error)

    def _owe_data_credit(self) -> None:
        window = self.window
        window.credit_owed = 0
        window.data_told = window.data_taken_total
        allowed = window.data_taken_total + window.data_window
        self._control.append((Kind.CREDIT, 0, 0, COUNTER.pack(allowed)))

    def grant(self, key: tuple[bool, int], allowed_bytes: int) -> None:
        """Allow the peer more of one long message (by whether it is an answer to us, and id)."""
        self.post(Kind.CREDIT, _FOR_RESPONSE * key[0], key[1], COUNTER.pack(allowed_bytes))

    def reply_error(self, id: int, type_name: str, message: str) -> None:
        """Answer a request with an error."""
        self.window.handling -= 1
        self.post(Kind.ERROR, 0, id, pack_error(type_name, message, self.sends.segment_bytes))

    def wake_patient(self) -> None:
        """Wake who waits for credit or for an answer."""
        for waiter in self.patient:
            waiter.wake()

    # ---- ends ----------------------------------------------------------------------------------

    def end(self, error: Exception) -> None:
        """The peer has gone: with CLOSE (`EndOfStream`), or without a word."""
        if self.state == "OPEN":
            self._finish("ENDED" if isinstance(error, anyio.EndOfStream) else "BROKEN", error)

    def fail(self, error: Exception) -> None:
        """Break the connection because of `error`."""
        if self.state != "OPEN":
            return
        if not isinstance(error, _EXPECTED):
            logger.error("%r broke by an error of our own", self, exc_info=error)
        error = as_broken(error)
        if isinstance(error, RemoteProtocolError):
            logger.warning("%s broke the protocol: %s", self.peer, error)
            tell_fault(self.channel, str(error), error.code, self.sends.segment_bytes)
        self._finish("BROKEN", error)

    def close(self, *, keep_channel: bool = False) -> None:
        """Say CLOSE if there is room, and let go of everything (of the channel at `release`)."""
        if self.state == "OPEN" and self.flush_control():
            say(self.channel, Kind.CLOSE)
        self._keep_channel = keep_channel
        if self.state != "CLOSED":
            self._finish("CLOSED", anyio.ClosedResourceError("this side has closed the connection"))

    def drop_in_child(self) -> None:
        """See `Endpoint.drop_in_child`: the child finds its connections closed."""
        self.state = "CLOSED"
        self.error = anyio.ClosedResourceError(
            "this connection belongs to the parent process: connect again after fork"
        )
        self._attached, self._released = False, True
        self.channel.forget()
        for fd in self._fds[1:]:
            os.close(fd)

    def _finish(self, state: str, error: Exception) -> None:
        self.state, self.error = state, error
        if self._attached:
            self._attached = False
            _attach.detach(self)
            self.hub.detach(self)
        if not self._keep_channel:
            self.release()
        self.reassembly.clear()
        lost = error
        if isinstance(error, anyio.EndOfStream):
            lost = anyio.BrokenResourceError("the peer closed before it answered")
        self.requests.fail_all(lost)
        for credit in self.credits.values():
            credit.wake()
        for waiter in self.senders:
            waiter.wake()
        self.wake_patient()
        if self.receiver is not None:
            self.receiver.wake()
        if self.server is not None:
            self.server.on_end(self)
        for callback in self.on_close:
            callback()

    def release(self) -> None:
        """Close the channel, if that has not been done."""
        if not self._released:
            self.channel.close()
            self._released = True
            for fd in self._fds[1:]:
                os.close(fd)
