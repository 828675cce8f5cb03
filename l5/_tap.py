"""A tap: every frame of this process's connections, as pcapng.

While there is one, each session's channel is wrapped in one that notes what passes, and the hot
paths stand aside: a client's because its ring says so (``shared = 2``), a server's because the
ring's server is not the poller's.  Without a tap nothing of this is there, and nothing is paid.
Connections of `l5.blocking` are used by many threads, so theirs is set with their lock.

What it does not see: connections that the threads of a native service hold already when it begins
(later ones are answered by the event loop while it lasts).
"""

from __future__ import annotations

import atexit
import io
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from . import _live, _pcapng
from .abc import Channel, Frame

if TYPE_CHECKING:
    from ._session import Session
    from .abc import Buffer

QUEUED_MAX = 65536
"""Frames that wait to be written; what comes on top is dropped and counted."""
PAUSE_S = 0.01
"""How long frames are gathered before they are written: a thread that is woken for each of them
takes the GIL from those who talk, and that was most of what a tap cost."""
EXIT_S = 1.0
"""How long a process that ends waits for the rest to be written: who reads it may have stopped."""


class TappedChannel(Channel):
    """A channel that notes the frames of another one."""

    def __init__(self, inner: Channel, note: Callable[[bool, Frame], None]) -> None:
        self.inner = inner
        self.transport = inner.transport
        self.one_copy = inner.one_copy
        self.frame_limit = inner.frame_limit
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def wants_write(self) -> bool:
        return self.inner.wants_write

    def try_send(self, kind: int, flags: int, id: int, payload: Buffer) -> bool:
        if not self.inner.try_send(kind, flags, id, payload):
            return False
        self._note(True, Frame(kind, flags, id, bytes(payload)))
        return True

    def carry(self, kind: int, flags: int, id: int, payload: bytes) -> bool:
        return False  # alone it is seen when it goes

    def try_receive(self) -> Frame | None:
        frame = self.inner.try_receive()
        if frame is not None:
            self._note(False, Frame(*frame))
        return frame

    def poll(self) -> bool:
        return self.inner.poll()

    def arm(self, *, space: bool = False) -> bool:
        return self.inner.arm(space=space)

    def disarm(self) -> None:
        self.inner.disarm()

    def fileno(self) -> int:
        return self.inner.fileno()

    def on_event(self) -> None:
        self.inner.on_event()

    def flush(self) -> bool:
        return self.inner.flush()

    def close(self) -> None:
        self.inner.close()

    def forget(self) -> None:
        self.inner.forget()


class Tap:
    """Records the frames of this process; made by `tap`, ended by `close` or ``with``."""

    def __init__(self, write: Callable[[bytes], object], snap_bytes: int) -> None:
        self._write = write
        self._snap_bytes = snap_bytes
        self._queue: deque[bytes] = deque()
        self._news = threading.Event()
        self._over = threading.Event()
        self._failed = False
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self.frames: int = 0
        """Recorded."""
        self.dropped: int = 0
        """Left out because they came faster than they could be written."""
        self._write(_pcapng.beginning(snap_bytes, f"l5 process {os.getpid()}"))
        self._thread = threading.Thread(target=self._drain, name="l5-tap", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)
        _live.on_session.append(self._attach)
        for session in _live.sessions():
            self._attach(session)

    def __enter__(self) -> Tap:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Record no more, and write what waits.  May be called twice."""
        self._close(None)

    def _close(self, patience_s: float | None) -> None:
        if self._over.is_set():
            return
        atexit.unregister(self._at_exit)
        _live.on_session.remove(self._attach)
        for session in _live.sessions():
            if session.tap is self:
                _detach(session)
        self._over.set()
        self._news.set()
        self._thread.join(patience_s)

    def _at_exit(self) -> None:
        """Write what waits: the thread would not live to do it."""
        if os.getpid() == self._pid:
            self._close(EXIT_S)

    @property
    def failed(self) -> bool:
        """Tell whether what is written cannot be written any more."""
        return self._failed

    def _attach(self, session: Session) -> None:
        if session.tap is not None:
            return  # one tap at a time
        number, transport, pid = session.number, session.channel.transport, os.getpid()

        def note(sent: bool, frame: Frame) -> None:
            with self._guard:
                if len(self._queue) >= QUEUED_MAX or self._failed:
                    self.dropped += 1
                    return
                self.frames += 1
                now_ns = time.time_ns()
                self._queue.append(
                    _pcapng.packet(now_ns, sent, pid, number, transport, frame, self._snap_bytes)
                )
            if not self._news.is_set():
                self._news.set()

        session.tap = self
        session.channel = TappedChannel(session.channel, note)
        session.hub.keep_back(session, self)
        if session.lane is not None:
            session.lane.aside += 1

    def _drain(self) -> None:
        while True:
            self._news.wait()
            self._over.wait(PAUSE_S)
            self._news.clear()
            ending = self._over.is_set()
            blocks: list[bytes] = []
            while self._queue:
                blocks.append(self._queue.popleft())
            if ending:
                blocks.append(_pcapng.ending(time.time_ns(), self.frames, self.dropped))
            try:
                self._write(b"".join(blocks))
            except (OSError, ValueError):
                self._failed = True
            if ending:
                return


def _detach(session: Session) -> None:
    channel: Any = session.channel
    session.channel = channel.inner
    session.tap = None
    session.hub.keep_back(session, None)
    if session.lane is not None:
        session.lane.aside -= 1


def tap(file: str | os.PathLike[str] | IO[bytes], *, snap_bytes: int = 256) -> Tap:
    """Record every frame of this process's connections to `file`, as pcapng for Wireshark.

    Use as ``with l5.tap("frames.pcapng"):``; ``l5 dump --dissector`` prints where the dissector
    is.  Each frame with its time, direction, connection, transport, header, and `snap_bytes` of
    its payload.  A thread writes; frames that come faster than it can are dropped and counted.
    While there is a tap a request takes each end some 60 us more, and reading or writing in place
    copies.  `OSError` when the file cannot be opened.
    """
    if snap_bytes < 0:
        raise ValueError(f"snap_bytes={snap_bytes}: expected 0 or more")
    if not isinstance(file, str | os.PathLike):
        return Tap(file.write, snap_bytes)
    stream = io.FileIO(file, "w")
    return _FileTap(stream, snap_bytes)


class _FileTap(Tap):
    """A tap that owns its file."""

    def __init__(self, stream: IO[bytes], snap_bytes: int) -> None:
        self._stream = stream
        super().__init__(stream.write, snap_bytes)

    def close(self) -> None:
        super().close()
        self._stream.close()


def serve_tap(sock: socket.socket, snap_bytes: int) -> None:
    """Send the frames of this process to `sock` until its other end leaves."""
    with Tap(sock.sendall, min(snap_bytes, 1 << 20)):
        while sock.recv(4096):
            pass
