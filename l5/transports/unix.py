"""Unix sockets, at a path or under an abstract name (Linux).

How a listener takes its path without ever destroying another's:

1. The socket is bound to a fresh name beside the path, mode 0600 from its first moment, and
   listens there before anybody can find it.  So whoever finds a socket at the path that
   refuses connections knows that its owner is gone.
2. A hard link gives it the path, and fails if the path exists.  So of several servers that
   start at once one wins, and nobody's path is ever overwritten.
3. If the path exists: anything but a socket is left alone; a socket that accepts (or is too
   busy to) belongs to a running server; one that refuses is stale and removed, then step 2 again.

Two servers that both found the stale socket could remove each other's fresh one.  So look, probe
and removal happen under a `flock` of the directory: nothing to leave behind, and only a start
over a dead server's socket takes it.  Moving the path aside without a lock to look at it again is
no way out: while it is away, a third server can take the path of a live one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final

import anyio

from ..abc import BootstrapTransport, Link, LinkListener, PeerInfo, Probe
from ._sockets import SocketLink, SocketListener, connect_socket, peer_credentials

if TYPE_CHECKING:
    from .._address import Address
    from .._options import Options

__all__ = ["UnixTransport"]

_PATH_BYTES_MAX: Final = 107
_DEFAULT_BACKLOG: Final = 128
_OWN_MODE: Final = 0o600
_SHARED_MODE: Final = 0o666
_CLAIM_TRIES: Final = 100
_LOCK_TRIES: Final = 400
_LOCK_PAUSE_S: Final = 0.005
_NO_HARD_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class UnixTransport(BootstrapTransport):
    """Connections over Unix sockets: they know the peer's uid and can pass descriptors."""

    name: ClassVar[str] = "unix"

    def probe(self) -> Probe:
        """Tell whether this system has Unix sockets."""
        if not hasattr(socket, "AF_UNIX"):
            return Probe(False, "this system has no Unix sockets; use l5+tcp://")
        return Probe(True)

    async def connect(self, address: Address, options: Options) -> Link:
        """Connect to the path or abstract name; `OSError` says what is the matter there."""
        path = address.path or ""
        target = _sockaddr(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await connect_socket(sock, target)
            return _link(sock, path)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, _connect_text(path, error)) from None
        except BaseException:
            sock.close()
            raise

    async def listen(self, address: Address, options: Options) -> LinkListener:
        """Listen at the path, replacing a dead server's socket but nothing else.

        The file has mode 0600, or 0666 when `allow_uids`, `allow` or `token` let others in.
        """
        path = address.path or ""
        target = _sockaddr(path)
        url = f"{address.scheme}://{address.location}"
        backlog: int = getattr(options, "backlog", _DEFAULT_BACKLOG)
        if path.startswith("@"):
            return SocketListener([_listen_abstract(path, target, backlog)], url, _link)
        # Other users can show their uid, or a token, only if the file lets them connect.
        widened = any(getattr(options, name, None) for name in ("allow_uids", "allow", "token"))
        claim = _PathClaim(path, _SHARED_MODE if widened else _OWN_MODE)
        return SocketListener([await claim.listen(backlog)], url, _link, claim.release)


def _link(sock: socket.socket, path: str = "") -> Link:
    uid, pid = peer_credentials(sock)
    peer = PeerInfo(path, uid=uid, pid=pid, loopback=True)
    return SocketLink(sock, "unix", peer, passes_fds=True)


def _sockaddr(path: str) -> str | bytes:
    raw = os.fsencode(path)
    if len(raw) > _PATH_BYTES_MAX:
        raise OSError(
            errno.ENAMETOOLONG,
            f"the socket path {path!r} has {len(raw)} bytes; the kernel takes"
            f" {_PATH_BYTES_MAX} at most, so use a shorter directory or an abstract name (@name)",
        )
    return b"\0" + raw[1:] if path.startswith("@") else path


def _connect_text(path: str, error: OSError) -> str:
    hints = {
        errno.ENOENT: "there is no such socket; is the server running?",
        errno.ECONNREFUSED: "nobody listens there; is the server running?",
        errno.EACCES: "this user may not connect; the server's allow_uids= or token= can let it in",
        errno.EPROTOTYPE: "it is a socket of another kind",
    }
    return f"{path}: {hints.get(error.errno or 0, error.strerror or str(error))}"


def _listen_abstract(path: str, target: str | bytes, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(target)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(path) from None
        raise
    return sock


def _in_use(path: str) -> OSError:
    return OSError(
        errno.EADDRINUSE, f"{path}: a server listens there already; stop it or use another name"
    )


class _PathClaim:
    """One listening socket's right to a path; see the top of this module."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = path
        self._directory = os.path.dirname(path)
        self._mode = mode
        self._owner_pid = os.getpid()
        self._identity = (0, 0)

    async def listen(self, backlog: int) -> socket.socket:
        """Return a socket that listens at the path; `OSError` says what stands in the way."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = self._fresh_name()
        try:
            self._bind(sock, name)
            try:
                # Again by name for systems where the descriptor's mode does not count.
                os.chmod(name, self._mode)
                sock.listen(backlog)
                self._identity = _identity(os.lstat(name))
                await self._publish(name)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name)
        except BaseException:
            sock.close()
            raise
        return sock

    def release(self) -> None:
        """Remove the path if it is still this socket's; a forked child leaves it alone."""
        if os.getpid() == self._owner_pid:
            with suppress(OSError):
                if _identity(os.lstat(self._path)) == self._identity:
                    os.unlink(self._path)

    def _bind(self, sock: socket.socket, name: str) -> None:
        # On Linux the file takes its mode from the descriptor: no umask, which all threads share.
        with suppress(OSError):
            os.fchmod(sock.fileno(), self._mode)
        try:
            if len(os.fsencode(name)) <= _PATH_BYTES_MAX:
                sock.bind(name)
                return
            # The path itself fits but the longer name does not: go there by descriptor.
            with _directory_fd(self._directory) as directory_fd:
                sock.bind(f"/proc/self/fd/{directory_fd}/{os.path.basename(name)}")
        except OSError as error:
            raise OSError(error.errno, self._bind_text(error)) from None

    def _bind_text(self, error: OSError) -> str:
        hints = {
            errno.ENOENT: f"the directory {self._directory} does not exist; make it first",
            errno.EACCES: f"this user may not write to the directory {self._directory}",
            errno.EROFS: f"the directory {self._directory} is read-only",
        }
        return f"{self._path}: {hints.get(error.errno or 0, error.strerror or str(error))}"

    async def _publish(self, name: str) -> None:
        for _ in range(_CLAIM_TRIES):
            try:
                self._place(name)
            except FileExistsError:
                await self._remove_stale()
            else:
                return
        raise _in_use(self._path)

    def _place(self, name: str) -> None:
        """Give the socket called `name` the path, unless that exists."""
        try:
            os.link(name, self._path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # A file system without hard links: the moment between the two lines is a race that
            # can cost another server, starting at the same time, its path.
            if os.path.lexists(self._path):
                raise FileExistsError(errno.EEXIST, self._path) from None
            os.rename(name, self._path)

    async def _remove_stale(self) -> None:
        """Take a dead server's socket away; `OSError` if it is anything else."""
        if not self._is_stale():
            return  # it vanished; all other cases raise, without a lock
        with _directory_fd(self._directory) as directory_fd:
            await self._lock(directory_fd)
            if self._is_stale():
                os.unlink(self._path)

    def _is_stale(self) -> bool:
        """Tell a dead server's socket (True) from nothing (False); else raise `OSError`."""
        try:
            mode = os.lstat(self._path).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISSOCK(mode):
            raise OSError(errno.EEXIST, f"{self._path}: a file that is no socket is in the way")
        return _refuses(self._path)

    async def _lock(self, directory_fd: int) -> None:
        try:
            for _ in range(_LOCK_TRIES):
                if _try_lock(directory_fd):
                    return
                await anyio.sleep(_LOCK_PAUSE_S)
            problem = "another program holds the lock of the directory"
        except OSError as error:
            problem = f"the directory cannot be locked ({error.strerror})"
        raise OSError(
            errno.EADDRINUSE,
            f"{self._path}: a dead server's socket is in the way and {problem}; remove the file",
        )

    def _fresh_name(self) -> str:
        return os.path.join(self._directory, f".l5-{secrets.token_hex(6)}")


@contextmanager
def _directory_fd(path: str) -> Generator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuses(path: str) -> bool:
    """Probe: True if stale, False if it vanished; `OSError` if a server lives there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except FileNotFoundError:
            return False
        except BlockingIOError:
            pass  # alive, with a full queue
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                errno.EADDRINUSE, f"{path}: the socket there cannot be tested ({reason})"
            ) from None
    raise _in_use(path)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
