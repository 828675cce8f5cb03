"""Remote memory for threads: `l5.abc.RemoteRegion`, in the calling thread.

The memory link is a connection with a hub of its own, as any blocking connection.  A read of mapped
memory takes no lock: it is one call into C.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _memory_wire as wire
from .._connect import establish_memory
from .._errors import ConnectError, LocalProtocolError, RemoteAccessError
from .._flow import Budget
from .._memory_link import MemoryLink
from ..abc import RemoteRegion as AsyncRegion
from . import _private_loop
from ._hub import busy, expiry

if TYPE_CHECKING:
    from .._options import Options
    from .._session import Session
    from ..abc import Buffer, Span, Take
    from ._hub import BlockingHub

T = TypeVar("T")

__all__ = ["OpensRegions", "RemoteRegion"]


class RemoteRegion:
    """A peer's memory; operations, errors and promises are those of `l5.abc.RemoteRegion`.

    Any number of threads may use it at once.  Calls that may wait take a `timeout` in seconds and
    raise `TimeoutError`; what was asked for may then have been executed.
    """

    def __init__(self, region: AsyncRegion, run: Callable[..., Any]) -> None:
        self._region = region
        self._run_steps = run
        self.name: str = region.name
        self.size_bytes: int = region.size_bytes
        self.writable: bool = region.writable
        self.atomic: bool = region.atomic
        self.one_sided: bool = region.one_sided
        self.emulated_because: str = region.emulated_because
        self._read: Callable[[int, int], bytes | None] = getattr(region, "_read", _not_here)
        self.read_now: Callable[[int, int], bytes] = region.read_now
        """As `read`, where there is a mapping; it does not notice that the owner has died."""

    def __repr__(self) -> str:
        return repr(self._region)

    def _run(self, steps: Coroutine[Any, Any, T], timeout: float | None, what: str) -> T:
        return self._run_steps(steps, expiry(timeout), what)

    @property
    def closed(self) -> bool:
        """Tell whether it is known to have ended."""
        return self._region.closed

    @property
    def mapping(self) -> memoryview | None:
        """A view of the owner's memory, or None; see `l5.abc.RemoteRegion.mapping`."""
        return self._region.mapping

    def read(self, offset: int, length: int, *, timeout: float | None = None) -> bytes:
        """Return `length` bytes from `offset` on."""
        data = self._read(offset, length)
        if data is not None:
            return data
        return self._run(self._region.read(offset, length), timeout, "reading")

    def read_many(self, spans: Sequence[Span], *, timeout: float | None = None) -> list[bytes]:
        """Read several ``(offset, length)``; return them in their order."""
        return self._run(self._region.read_many(spans), timeout, "read_many")

    def read_each(
        self,
        spans: Iterable[Span],
        take: Take,
        *,
        window: int = 16,
        timeout: float | None = None,
    ) -> None:
        """Read spans, `window` at a time, and hand each to ``take(offset, data)``.

        Spans that `take` returns are read as well; `timeout` is for each `window`.
        """
        if not 1 <= window <= wire.SPANS_MAX:
            raise ValueError(f"window is {window}; it can be 1 to {wire.SPANS_MAX}")
        wanted = deque(spans)
        while wanted:
            batch = [wanted.popleft() for _ in range(min(window, len(wanted)))]
            for span, data in zip(batch, self.read_many(batch, timeout=timeout), strict=True):
                wanted.extend(take(span[0], data) or ())

    def write(self, offset: int, data: Buffer, *, timeout: float | None = None) -> None:
        """Write `data`; returns when it is in the owner's memory."""
        self._run(self._region.write(offset, data), timeout, "writing")

    def compare_and_swap(
        self, offset: int, expected: int, desired: int, *, timeout: float | None = None
    ) -> int:
        """Replace the word at `offset` (a multiple of 8) if it is `expected`; return the old."""
        steps = self._region.compare_and_swap(offset, expected, desired)
        return self._run(steps, timeout, "compare_and_swap")

    def fetch_and_add(self, offset: int, value: int, *, timeout: float | None = None) -> int:
        """Add to the word at `offset`, modulo 2**64; return what was there."""
        return self._run(self._region.fetch_and_add(offset, value), timeout, "fetch_and_add")

    def close(self) -> None:
        """Let go of it; the connection and its other regions go on.  May be called twice."""
        if not self._region.closed:
            self._run(self._region.aclose(), None, "closing")

    def __enter__(self) -> RemoteRegion:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _not_here(offset: int, length: int) -> None:
    """Stand in for the hot call where there is no mapping."""


class _ThreadedLink(MemoryLink):
    """Its end comes from another hub's thread, and has to take this one's lock."""

    def __init__(self, connection: Any, user: Session) -> None:
        self.connection = connection
        hub: BlockingHub = connection._hub
        self._lock = hub.lock
        # Openings are one at a time by `OpensRegions`, so nothing is to be waited for here.
        super().__init__(connection._engine, user, nullcontext())

    def on_user_end(self) -> None:
        """See `MemoryLink.on_user_end`."""
        with self._lock:
            super().on_user_end()


class OpensRegions:
    """The part of `Connection` that opens its peer's memory."""

    _session: Session
    _dial: tuple[str, Options, bytes] | None = None
    """What it was connected with; None where this end was dialled."""
    _memory: _ThreadedLink | None = None
    _opening: threading.RLock | None = None
    _opens: bool = False
    """A thread is in `open_region`, and has the lock."""

    def open_region(self, name: str, *, timeout: float | None = None) -> RemoteRegion:
        """Open memory that the server exports by `name`, as `l5.Connection.open_region`.

        The first call makes a second, small connection, within ``connect_timeout``; `timeout` is
        for what comes after that.  Raises `RemoteAccessError`, `TimeoutError`, `ValueError`.
        """
        wire.check_name(name)
        self._session.check_open()
        with _guard:
            opening = self._opening = self._opening or threading.RLock()
        with opening:
            if self._opens:
                raise busy()
            self._opens = True
            try:
                link = self._memory_link()
                run: Callable[..., Any] = link.connection._run
                return RemoteRegion(run(link.open(name), expiry(timeout), "opening"), run)
            finally:
                self._opens = False

    def _memory_link(self) -> _ThreadedLink:
        if self._dial is None:
            raise LocalProtocolError("only the end that connected opens regions: the server's")
        if self._memory is not None and self._memory.up:
            return self._memory
        try:
            made, chosen = _private_loop.run(establish_memory, *self._dial)
            # The same class of connection as this one: with a hub of its own.
            connection: Any = type(self)(made, chosen, Budget(chosen.reassembly_bytes))  # type: ignore[call-arg]
        except (ConnectError, OSError) as error:
            raise RemoteAccessError(f"no memory link to the server: {error}") from error
        connection._session.role = "memory"
        self._memory = _ThreadedLink(connection, self._session)
        if self._session.state != "OPEN":
            self._memory.on_user_end()
            self._session.check_open()
        return self._memory


_guard = threading.RLock()  # a signal's handler may come in here, too
