"""Looking into a running process: an abstract Unix socket that answers only the process's own user.

Opened by `open_status`, or with ``L5_STATUS=1`` in the environment as soon as there is a
connection or a server.  A thread serves it, so that a process whose loop is busy, or waits for
something else, answers all the same; nobody asking, it sleeps and nothing is measured.

    watch\\n   ->  a snapshot as one line of JSON; latencies are measured until the watcher leaves
    tap N\\n   ->  pcapng, frames with N bytes of payload each, until the other end leaves
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import struct
import threading
from types import TracebackType

from . import _live

logger = logging.getLogger("l5.status")

_CREDENTIALS = struct.Struct("iII")
CLIENTS_MAX = 8
_LINE_BYTES_MAX = 64


def address_of(pid: int) -> str:
    """Return the abstract address at which a process answers."""
    return f"\0l5-status-{pid}"


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process at the other end, by the kernel's word."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


class StatusEndpoint:
    """Answers ``l5 top`` and ``l5 dump``; made by `open_status`, ended by `close` or ``with``."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._clients: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        try:
            self._socket.bind(address_of(os.getpid()))
            self._socket.listen(CLIENTS_MAX)
        except OSError as error:
            self._socket.close()
            raise OSError(
                error.errno, f"the status address of process {os.getpid()} cannot be had: {error}"
            ) from None
        self._thread = threading.Thread(target=self._accept, name="l5-status", daemon=True)
        self._thread.start()

    def __enter__(self) -> StatusEndpoint:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Answer no more; those who watch are cut off.  May be called twice."""
        for sock in (self._socket, *list(self._clients)):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._thread.join()
        for thread in list(self._threads):
            thread.join()
        self._socket.close()

    def forget(self) -> None:
        """(In a forked child) there is no thread here: close the copies."""
        self._socket.close()
        for sock in self._clients:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock = self._socket.accept()[0]
            except OSError:
                return
            pid, uid = peer_of(sock)
            if uid not in (os.geteuid(), 0) or len(self._clients) >= CLIENTS_MAX:
                logger.info("process %d of user %d is not told about this process", pid, uid)
                sock.close()
                continue
            self._clients.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.add(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, sock.makefile("rb") as lines:
                command = lines.readline(_LINE_BYTES_MAX)
                if command == b"watch\n":
                    _serve_watcher(sock, lines)
                elif command.startswith(b"tap ") and command[4:-1].isdigit():
                    from ._tap import serve_tap

                    serve_tap(sock, int(command[4:-1]))
        except OSError:
            pass  # it left
        finally:
            self._clients.discard(sock)
            self._threads.discard(threading.current_thread())


def _serve_watcher(sock: socket.socket, lines: object) -> None:
    _live.watch(True)
    try:
        while True:
            sock.sendall(json.dumps(_live.snapshot().as_dict()).encode() + b"\n")
            if not lines.readline(_LINE_BYTES_MAX):  # type: ignore[attr-defined]
                return
    finally:
        _live.watch(False)


_endpoint: StatusEndpoint | None = None
_failed = False


def open_status() -> StatusEndpoint:
    """Let ``l5 top`` and ``l5 dump`` of the same user (and root) look into this process (Linux).

    Costs a sleeping thread; measures nothing until somebody asks.  `OSError` if it is open.
    """
    global _endpoint
    _endpoint = StatusEndpoint()
    return _endpoint


def open_if_wanted() -> None:
    """Open it, once; a failure is logged."""
    global _failed
    if _endpoint is None and not _failed:
        try:
            open_status()
        except OSError as error:
            _failed = True
            logger.warning("L5_STATUS: %s", error)


def _drop_in_child() -> None:
    global _endpoint
    if _endpoint is not None:
        _endpoint.forget()
        _endpoint = None


os.register_at_fork(after_in_child=_drop_in_child)


class Watcher:
    """The other end: asks a process of this host for snapshots, or for its frames."""

    def __init__(self, pid: int, command: str = "watch") -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address_of(pid))
            found, uid = peer_of(self._socket)
            if found != pid or uid not in (os.geteuid(), 0):
                raise ConnectionRefusedError(f"process {found} of user {uid} answers for {pid}")
            self._socket.sendall(f"{command}\n".encode())
        except OSError as error:
            self._socket.close()
            if os.path.isdir("/proc/self") and not os.path.isdir(f"/proc/{pid}"):
                raise ProcessLookupError(errno.ESRCH, f"there is no process {pid}") from None
            raise type(error)(
                error.errno,
                f"process {pid} does not answer ({error.strerror or error}): start it with"
                " L5_STATUS=1, or call l5.open_status() in it, as the same user and in the same"
                " network namespace",
            ) from None
        self._lines = self._socket.makefile("rb")
        self._asked = True

    def read(self) -> dict[str, object]:
        """Return the next snapshot; `EOFError` when the process has ended."""
        if not self._asked:
            try:
                self._socket.sendall(b"\n")
            except OSError:
                raise EOFError("the process has ended") from None
        self._asked = False
        line = self._lines.readline()
        if not line:
            raise EOFError("the process has ended, or answers somebody else only")
        return json.loads(line)

    def read_bytes(self) -> bytes:
        """Return what came; empty at the end."""
        return self._socket.recv(65536)

    def set_timeout(self, seconds: float) -> None:
        """Let `read_bytes` wait for so long, then raise `TimeoutError`."""
        self._socket.settimeout(seconds)

    def stop(self) -> None:
        """Ask for no more; what was recorded before still comes."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave."""
        self._lines.close()
        self._socket.close()
