"""A hub without an event loop: the engine runs in the calling thread and blocks where it waits.

The engine is written with coroutines, and they suspend in one place only, `Hub.park`.  Here each
call of a user's thread runs its coroutine by hand, step by step:

    with the connection's lock:  go on with the coroutine, until it finishes or wants to wait
    without the lock:            wait (for a descriptor, or for another thread), then again

So threads are to this hub what tasks are to the other: as many as like use a connection at once,
the first one that has to wait drives, and others take over.  What the engine does when a task is
cancelled, it does here when the time of a call is over, or when a signal handler raises: the
exception is thrown into the coroutine where it waits.

An exception that comes while the engine is not waiting (a signal's handler raised in the middle of
it) breaks the connection: nobody knows how far it got.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from .._errors import L5Error
from .._transmit import MessageCancelled
from .._wait import Hub, WaitEvent
from ._sleeping import Expired, NoDescriptor, ThreadEvent, Wish, wait_for

if TYPE_CHECKING:
    from .._fast import Poller, Ring
    from .._loop import Descriptor
    from .._session import Session
    from .._waiter import OwnRequest
    from .._watch import Watcher
    from ._budget import ThreadBudget

T = TypeVar("T")

_LOCKED, _LOCKED_INSIDE = 1, 2  # enum sharing in native/_fast.c
_LONGEST_SLEEP_S = 86400.0


OWN_ERRORS: Final[tuple[type[BaseException], ...]] = (
    Expired,
    L5Error,
    anyio.BrokenResourceError,
    anyio.BusyResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    BufferError,
    MessageCancelled,
    StopAsyncIteration,
    TypeError,
    ValueError,
)
"""What the engine raises by itself; anything else came out of a signal's handler (or is a bug)."""


class Call:
    """One call of one thread."""

    __slots__ = ("done", "expires", "looked", "over", "raised", "result", "thrown", "wish")

    def __init__(self, expires: float | None) -> None:
        self.expires: float | None = expires
        self.looked: bool = False
        """It was over already, and has had its one look at what is there without waiting."""
        self.over: bool = False
        self.wish: Wish | None = None
        self.thrown: BaseException | None = None
        self.raised: BaseException | None = None
        """What came out of the engine, as its own outcome."""
        self.done: bool = False
        self.result: Any = None

    def rest(self) -> None:
        """(Without the lock) wait for what the engine wished for."""
        wish = self.wish
        assert wish is not None
        self.over = False
        if self.expires is None:
            wish(None)
            return
        left = self.expires - monotonic()
        if left <= 0:
            self.over = self.looked or not wish(0.0)
            self.looked = True
        elif not wish(min(left, _LONGEST_SLEEP_S)):
            self.over = monotonic() >= self.expires


_NOBODY = Call(None)


def _go_on(seconds: float | None) -> bool:
    return seconds is None or seconds > 0


class _Scope(AbstractContextManager["_Scope"]):
    """What `anyio.move_on_after` is to tasks."""

    def __init__(self, call: Call, seconds: float) -> None:
        self._call = call
        self._outer = call.expires
        ends = monotonic() + seconds
        self._ours = self._outer is None or ends < self._outer
        if self._ours:
            call.expires, call.looked = ends, False

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._call.expires, self._call.looked = self._outer, False
        return self._ours and isinstance(exc_value, Expired)


class BlockingHub(Hub):
    """One connection's hub."""

    blocking = True
    lanes = False
    many_tasks = False  # and a call without any time has one look only

    def __init__(self, ring: Ring | None) -> None:
        super().__init__()
        self.lock: threading.RLock = threading.RLock()
        """Held by whoever runs the engine; reentrant so that a signal handler gets an error."""
        self.session: Session | None = None
        self.budget: ThreadBudget | None = None
        self.hungry: bool = False
        """Memory has been given back elsewhere that this connection was refused."""
        self.on_wake: Callable[[], None] | None = None
        self._ring = ring
        self._resting = _LOCKED
        """What the ring's hot calls are told while no engine runs."""
        self._inside = False
        self._callers: set[int] = set()
        """Threads that are in a call: a signal handler in one of them must not wait for it."""
        self.flat: int = 0
        """The thread that sleeps without the engine (`_asleep`); such a one is in a call, too."""
        self.spare: OwnRequest | None = None
        """One to be used again: making it costs as much as half of what is done with it."""
        self._call = _NOBODY
        self._woken_by: list[tuple[int, int]] = []
        self._slept_on: Watcher | None = None
        if ring is not None:
            ring.shared = _LOCKED
        _hubs.add(self)

    @property
    def inside(self) -> bool:
        """(With the lock) tell whether this thread is in the middle of the engine already."""
        return self._inside

    # ---- running -------------------------------------------------------------------------------

    def run(
        self,
        steps: Coroutine[Any, Any, T],
        expires: float | None = None,
        lost: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine of the engine to its end; `Expired` when its time is over before.

        `lost` is told, with the lock, of a result that an interruption kept from being returned.
        """
        call = Call(expires)
        me = threading.get_ident()
        if me in self._callers or me == self.flat:
            steps.close()
            raise busy()
        try:
            self._callers.add(me)
            while True:
                with self.lock:
                    self._advance(call, steps)
                    if call.done:
                        break
                call.rest()
            self._callers.discard(me)
            return call.result
        except BaseException as error:
            self._callers.discard(me)
            if error is not call.raised:
                self._interrupted(call, steps, error, lost)
            call.raised = None  # it refers to this frame: no cycle
            raise

    def calls_here(self) -> bool:
        """Tell whether the calling thread is in a call already: a signal handler came in."""
        me = threading.get_ident()
        return me in self._callers or me == self.flat

    def _advance(self, call: Call, steps: Coroutine[Any, Any, Any]) -> None:
        """(With the lock) go on until the engine is done or wants to wait."""
        if self._inside:
            call.raised = busy()
            steps.close()
            raise call.raised
        thrown, call.thrown = call.thrown, None
        self._call, self._inside = call, True
        if self._ring is not None:
            self._ring.shared = _LOCKED_INSIDE
        try:
            call.wish = steps.send(call.over or None) if thrown is None else steps.throw(thrown)
        except StopIteration as stop:
            call.done, call.result = True, stop.value
        except BaseException as error:
            if error is not thrown and not isinstance(error, OWN_ERRORS):
                self.spoil(error)
            call.raised = error
            raise
        finally:  # no calls in here: an interruption between the two would leave it locked
            self._inside, self._call = False, _NOBODY
            if self._ring is not None:
                self._ring.shared = self._resting

    def _interrupted(
        self, call: Call, steps: Any, error: BaseException, lost: Callable[[Any], object] | None
    ) -> None:
        """A signal's handler raised outside the engine: it is cancelled where it waits."""
        with self.lock:
            if call.done:
                if lost is not None:
                    lost(call.result)
                return
            if steps.cr_frame is None:  # it raised something else, which is lost
                self.spoil(error)
                return
            call.thrown = error
            try:
                self._advance(call, steps)
            except BaseException as outcome:
                if outcome is not error:
                    raise
            finally:
                call.raised = None
                steps.close()

    def spoil(self, error: BaseException) -> None:
        """(With the lock) break the connection: it was interrupted nobody knows where."""
        session = self.session
        if session is not None:
            what = f"{type(error).__name__} interrupted a call on this connection in its middle"
            session.fail(anyio.BrokenResourceError(what))
            session.inbox.clear()  # what was taken from it may be lost: nothing may come after that

    # ---- what the engine asks for ----------------------------------------------------------------

    def ring_poller(self, spin_us: int) -> Poller:
        """See `Hub.ring_poller`."""
        poller = super().ring_poller(spin_us)
        poller.shared = _LOCKED
        return poller

    async def breathe(self) -> None:
        """Let other threads in, look whether the time is over, and at the descriptors."""
        if await wait_for(_go_on):
            raise Expired
        self._breathed()
        self.poll_events()

    async def _sleep(self) -> None:
        if await wait_for(self._block):
            raise Expired

    def _block(self, seconds: float | None) -> bool:
        watcher = self._watcher
        if watcher is None:
            return True
        self._slept_on, self._woken_by = watcher, watcher.poll(seconds)
        return bool(self._woken_by)

    def _news(self, watcher: Watcher, own: object) -> list[tuple[int, int]]:
        """See `Hub._news`; what a sleep ended with is not asked for again.

        It may be old: then another thread saw to it meanwhile, and whoever is told finds nothing.
        """
        events, self._woken_by = self._woken_by, []
        if events and watcher is self._slept_on:
            return events
        return super()._news(watcher, own)

    def _new_descriptor(self, fd: int) -> Descriptor:
        return NoDescriptor(fd)

    def _new_event(self) -> WaitEvent:
        return ThreadEvent()

    def caller(self) -> object:
        """See `Errands.caller`."""
        return threading.get_ident()

    def now(self) -> float:
        """See `Hub.now`."""
        return monotonic()

    def move_on_after(self, seconds: float) -> AbstractContextManager[object]:
        """See `Hub.move_on_after`."""
        return _Scope(self._call, seconds)

    def keep_back(self, session: Session, tap: object) -> None:
        """See `HubCounters.keep_back`; any thread may call it."""
        with self.lock:
            super().keep_back(session, tap)
            self._resting = _LOCKED_INSIDE if tap else _LOCKED
            if self._ring is not None:
                self._ring.shared = _LOCKED_INSIDE if self._inside else self._resting

    def count_anew(self) -> None:
        """(On the hot path, with the lock) note that it was time for an event loop to run."""
        self._breathed()

    def _breathed(self) -> None:
        super()._breathed()
        if self.hungry and self.budget is not None:
            self.hungry = False
            self.budget.retry()
        if self.on_wake is not None:
            self.on_wake()

    def wake(self) -> None:
        """Wake the thread that drives, from any thread, without the lock."""
        try:
            self.interrupt()
        except OSError:
            pass  # it has just been closed: then nobody sleeps on it

    def renew_in_child(self) -> None:
        """(After fork, in the child) let go of what other threads of the parent hold."""
        self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._inside = False
        self.flat = 0
        self._callers.clear()
        self.drop_in_child()


def busy() -> Exception:
    """Return the error of a call that came in on top of another one, in the same thread."""
    return anyio.BusyResourceError(
        "using (this thread is in the middle of a call on it: a signal's handler came in)"
    )


def expiry(timeout: float | None) -> float | None:
    """Return the time at which a call with this `timeout` (seconds, None: never) gives up."""
    if timeout is None or timeout == math.inf:
        return None
    return monotonic() + timeout


def finish(steps: Coroutine[Any, Any, object]) -> None:
    """(With the lock) run a coroutine that does not wait."""
    try:
        steps.send(None)
    except StopIteration:
        return
    steps.close()
    raise RuntimeError("this was not to wait")


_hubs: weakref.WeakSet[BlockingHub] = weakref.WeakSet()


def _after_fork() -> None:
    for hub in list(_hubs):
        hub.renew_in_child()


os.register_at_fork(after_in_child=_after_fork)
