"""The one wait loop: spin, arm, re-check, sleep, for all connections of an event loop.

There is one `Hub` per event loop and no background task.  A task that has to wait makes a `Waiter`
and parks.  The first one to park *drives*: it polls the rings of all connections, spins for a
while, arms them all (arming refuses where something has arrived meanwhile), and sleeps on one
epoll descriptor that holds the descriptors of all connections.  The others sleep on an event.
When the driver has what it waited for, or is cancelled, it hands the driving over to one of them.

Spinning belongs to the hub and not to a connection: a poll looks at all rings of the loop, so two
connections, or a client and a server in one loop, cannot starve each other.  Between two turns of
the loop (`breathe`) at most 64 messages are handled (or 50 us long requests) and 100 us spun.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import anyio

from . import native
from ._cpu import may_spin
from ._doze import SHORTCUTS_MAX, Dozing
from ._errands import Errands
from ._loop import Descriptor, checkpoint, current_loop_token, loop_checkpoint
from ._statistics import HubCounters
from ._unwoken import NAP_S, PARKS_MAX, Unwoken
from ._waiter import Endpoint, Waiter, WaitEvent, is_for, left_to_leader, rang_for
from ._watch import READABLE, WRITABLE, Watcher, make_bell, make_watcher

if TYPE_CHECKING:
    from ._fast import Poller

__all__ = ["Hub", "WaitEvent", "Waiter", "current_hub"]

STREAK_MAX = 64  # messages before the event loop must run
LOOK_EVERY_NS = 50_000
"""Between two looks at the descriptors while rings are busy: some tasks may breathe in one turn."""
HERE_TURNS = 2
TURN_MIN = 4
"""Frames of one connection that are taken at once, however many connections have some."""

_BELL_MESSAGE = (1).to_bytes(8, "little")


class Hub(HubCounters, Unwoken, Errands, Dozing):
    """All connections of one event loop; use `current_hub`."""

    lanes: bool = hasattr(select, "epoll")
    """Whether plain sockets may have a short way (`native/_lane.h`)."""

    def __init__(self) -> None:
        super().__init__()
        self._watcher: Watcher | None = None
        self._descriptor: Descriptor | None = None
        self._bell: tuple[int, int] | None = None
        self._endpoints: dict[int, Endpoint] = {}
        self._masks: dict[int, int] = {}
        self._unarmed: set[Endpoint] = set()
        self._parked: dict[Waiter, None] = {}
        self._driver: Waiter | None = None
        self._looked_ns: int = 0
        self._checkpoint: Callable[[], Awaitable[None]] = checkpoint
        self.streak: int = 0
        self.turn_frames: int = STREAK_MAX
        """Frames that an endpoint may take at once: it shares them with others that have some."""
        self.poller: Poller | None = None

    def _open(self) -> Watcher:
        if self._watcher is None:
            watcher = make_watcher()
            try:
                self._bell = make_bell()
                watcher.register(self._bell[0], READABLE)
            except BaseException:
                watcher.close()
                raise
            self._watcher = watcher
            self._descriptor = self._new_descriptor(watcher.fileno())
        return self._watcher

    def in_use(self) -> bool:
        return self._driver is not None or (self.poller is not None and self.poller.spinning)

    def _close_if_unused(self) -> None:
        """Give the descriptors back once nothing is watched: the loop may end without a word."""
        if self._endpoints or self._watcher is None or self._driver is not None:
            return
        assert self._descriptor is not None and self._bell is not None
        self._descriptor.close()
        self._watcher.close()
        for fd in set(self._bell):
            os.close(fd)
        self._watcher = self._descriptor = self._bell = None

    def interrupt(self) -> None:
        """Wake the sleeping driver, from within the loop: something has changed."""
        if self._bell is not None:
            os.write(self._bell[1], _BELL_MESSAGE)

    # ---- members -----------------------------------------------------------------------------

    def ring_poller(self, spin_us: int) -> Poller:
        """Return the poller of the loop's rings, with a budget of at least `spin_us`."""
        if self.poller is None:
            self.poller = native.Poller(0)
            self.poller.yield_only = not may_spin()
            # Not `os.cpu_count`: what a user says there (PYTHON_CPU_COUNT) is not the machine's.
            self.poller.movable = max(0, os.sysconf("SC_NPROCESSORS_ONLN"))
        self.poller.budget_ns = max(self.poller.budget_ns, spin_us * 1000)
        return self.poller

    def attach(self, endpoint: Endpoint) -> None:
        """Watch an endpoint from now on; `OSError` (no descriptors, no room) leaves nothing."""
        watcher = self._open()
        try:
            for fd in endpoint.fds():
                watcher.register(fd, READABLE)
                self._endpoints[fd] = endpoint
                self._masks[fd] = READABLE
        except BaseException:
            self.detach(endpoint)
            raise
        self.touch(endpoint)

    def detach(self, endpoint: Endpoint) -> None:
        """Stop watching; before its descriptors are closed."""
        self._unarmed.discard(endpoint)
        self.dismiss(endpoint)
        for fd in endpoint.fds():
            if self._endpoints.pop(fd, None) is not None and self._watcher is not None:
                del self._masks[fd]
                self._watcher.unregister(fd)
        self._close_if_unused()

    def touch(self, endpoint: Endpoint) -> None:
        """Poll, and arm again, an endpoint whose wishes have changed."""
        self._unarmed.add(endpoint)
        if self._driver is not None and self._driver.asleep_in is not None:
            self.interrupt()

    # ---- waiting -----------------------------------------------------------------------------

    async def let_answer(self, waiter: Waiter, server: Any) -> None:
        """Let a server in this very loop, which has a request of ours before it, run and answer.

        A turn of the loop may have it run first, and then again; who is not answered then parks.
        """
        for _ in range(HERE_TURNS):
            if waiter.ready or not server.on_news():
                return
            await self.breathe()

    async def park(self, waiter: Waiter, *, spun: bool = False) -> None:
        """Return when `waiter` is ready; with `spun` the first round does not spin (again)."""
        self._parks += 1
        if self._parks % PARKS_MAX == 0 and self.many_tasks:
            await self.breathe()
        while not waiter.ready:
            if self._driver is None:
                self._driver = waiter
                try:
                    await self._drive(waiter, spun)
                finally:
                    self._driver = None
                    if self._parked:
                        self._hand_over()
                    if not self._endpoints:
                        self._close_if_unused()
                continue
            waiter.event = self._new_event()
            self._parked[waiter] = None
            try:
                await waiter.event.wait()
            finally:
                waiter.event = None
                del self._parked[waiter]
                self._hand_over()  # also when it is ready: it may have been asked to drive before

    def _hand_over(self) -> None:
        """Let somebody drive who still waits (an event set without `ready` means: drive)."""
        if self._driver is not None:
            return
        for waiter in self._parked:
            if not waiter.ready and waiter.event is not None:
                waiter.event.set()
                return

    async def _drive(self, waiter: Waiter, spun: bool) -> None:
        while True:
            poller = self.poller  # of rings, or of sockets only, which have their events
            rings = poller if poller is not None and (poller.count or poller.spots) else None
            progress = rings and (not spun or rings.news()) and self._poll_rings(waiter, rings)
            progress = progress or (self.polled and self.ask_patiently())
            spun = False
            if waiter.ready:
                return
            if progress or (self._unarmed and not self._arm_all(waiter)):
                await self.breathe()  # whoever was woken runs now; cancellation is looked for
                if waiter.ready:
                    return
                continue
            if self._watcher is None:
                self._open()
            waiter.asleep_in = self
            began_ns = monotonic_ns()
            try:
                await self._nap() if self.napping else await self._sleep()
            finally:
                waiter.asleep_in = None
                self.count_sleep(slept_ns := monotonic_ns() - began_ns)
                if poller is not None:
                    poller.slept(slept_ns)
            self._breathed()
            # Mostly the driver takes what it waited for, without a look at all else that has come.
            self._shortcuts += 1
            if self._shortcuts > SHORTCUTS_MAX:
                self._shortcuts = 0
            else:
                endpoint: Any = waiter.collect()
                if endpoint is not None:
                    self._unarmed.add(endpoint)  # its bell has been taken
                if waiter.ready:
                    return
            self.poll_events(waiter)
            if waiter.ready:
                return

    def _sleep(self) -> Awaitable[None]:
        """Wait until some descriptor has news; to be awaited at once."""
        assert self._descriptor is not None
        return self._descriptor.wait_readable()

    async def _nap(self) -> None:
        with self.move_on_after(NAP_S):
            await self._sleep()
        self._unarmed.update(self.napping)

    def _new_descriptor(self, fd: int) -> Descriptor:
        return Descriptor(fd)

    def _new_event(self) -> WaitEvent:
        return anyio.Event()

    # ---- time --------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time, in seconds, by the clock that `move_on_after` goes by."""
        return anyio.current_time()

    def move_on_after(self, seconds: float) -> AbstractContextManager[object]:
        """Give up what is in the block after so many seconds."""
        return anyio.move_on_after(seconds)

    def _poll_rings(self, waiter: Waiter, poller: Poller) -> bool:
        """Poll all rings, spinning first; leave to the driver the frames that it takes itself."""
        ready = poller.ready()
        self.turn_frames = max(TURN_MIN, STREAK_MAX // max(1, len(ready)))
        own = waiter.server
        for session in ready:  # where somebody waits for room, he has it now: that is told once
            if own is not None and own in (session, session.server) and not session.senders:
                waiter.ready = True
            elif not left_to_leader(session):
                session.on_ready()
        return bool(ready)

    def _arm_all(self, waiter: Waiter) -> bool:
        armed = True
        for endpoint in list(self._unarmed):
            if endpoint.arm():
                self._unarmed.discard(endpoint)
                self._watch_write(endpoint)
            else:
                armed = False
                if waiter.server is not None and is_for(waiter.server, endpoint):
                    waiter.ready = True
                elif not left_to_leader(endpoint):
                    endpoint.on_ready()
        return armed

    def _watch_write(self, endpoint: Endpoint) -> None:
        fd = endpoint.fds()[0]
        mask = READABLE | WRITABLE if endpoint.wants_write() else READABLE
        if self._masks.get(fd, mask) != mask:
            self._masks[fd] = mask
            assert self._watcher is not None
            self._watcher.modify(fd, mask)

    def poll_events(self, waiter: Waiter | None = None) -> None:
        """Look at the descriptors without waiting: deaths, doorbells, sockets.

        What the bell of a ring was rung for is left there if it is for the driver, `waiter`.
        """
        own = None if waiter is None else waiter.server
        if self._watcher is None:
            return
        # The driver may sleep while another task looks: then the bell is not that task's to answer.
        driver_sleeps = self._driver is not None and self._driver.asleep_in is not None
        events = self._news(self._watcher, own)
        if own is not None and waiter is not None and self.poller is not None and self.poller.hot:
            waiter.ready = True
        self.turn_frames = max(TURN_MIN, STREAK_MAX // len(events)) if events else STREAK_MAX
        for fd, mask in events:
            endpoint = self._endpoints.get(fd)
            if endpoint is not None:
                self._unarmed.add(endpoint)
                if waiter and own is not None and mask == READABLE and rang_for(own, endpoint, fd):
                    waiter.ready = True
                    continue
                endpoint.on_event(fd, bool(mask & READABLE), bool(mask & WRITABLE))
            elif self._bell is not None and fd == self._bell[0] and not driver_sleeps:
                os.read(fd, 4096)
        if self.polled:
            self.ask()
        self.run_errands()
        if driver_sleeps and self._unarmed:
            self.interrupt()  # what rang here is not armed any more: the sleeper arms it again

    def _news(self, watcher: Watcher, own: object) -> list[tuple[int, int]]:
        """Ask which descriptors have news; lanes join the poller's queue instead."""
        if self.poller is not None and self.poller.lanes:
            return self.poller.glance(watcher.fileno(), own)
        return watcher.poll()

    async def breathe(self) -> None:
        """Let the event loop run: other tasks, cancellation, and news from descriptors."""
        await self._checkpoint()
        self._breathed()
        began_ns, poller = monotonic_ns(), self.poller
        if poller is None:
            self.poll_events()
        elif began_ns - self._looked_ns >= LOOK_EVERY_NS or poller.lanes or self.polled:
            self.poll_events()
            self._looked_ns = ended_ns = monotonic_ns()
            poller.lost(ended_ns - began_ns)  # long where a thread that computes took the GIL

    def _breathed(self) -> None:
        self.streak = 0
        if self.owing:
            self.settle()
        if self.poller is not None:
            self.poller.breathe()
        if self.beats is not None and (self._driver is None or self._driver.asleep_in is None):
            self.beats.look()  # not in the middle of a sleep, which has not been counted yet

    def due(self) -> bool:
        """Count a message that the hot path did not; tell whether the event loop should run."""
        self.streak += 1
        return self.streak >= STREAK_MAX or (self.poller is not None and self.poller.due)

    # ---- ends ---------------------------------------------------------------------------------

    def drop_in_child(self) -> None:
        """(After fork, in the child) forget everything; the parent's descriptors stay its own."""
        endpoints = set(self._endpoints.values())
        self._endpoints.clear()
        self._unarmed.clear()
        self._parked.clear()
        for endpoint in endpoints:
            endpoint.drop_in_child()
        if self._watcher is not None and self._bell is not None:
            self._watcher.close()
            for fd in set(self._bell):
                os.close(fd)
        self._watcher = self._descriptor = self._bell = None


_hubs: weakref.WeakKeyDictionary[Any, Hub] = weakref.WeakKeyDictionary()
_last = threading.local()


def current_hub() -> Hub:
    """Return the hub of the running event loop."""
    token = current_loop_token()
    cached: tuple[weakref.ref[Any], Hub] | None = getattr(_last, "pair", None)
    if cached is not None and cached[0]() is token:
        return cached[1]
    hub = _hubs.get(token)
    if hub is None:
        hub = _hubs[token] = Hub()
        hub._checkpoint = loop_checkpoint()
    _last.pair = (weakref.ref(token), hub)
    return hub


def _after_fork() -> None:
    for hub in list(_hubs.values()):
        hub.drop_in_child()
    _hubs.clear()
    _last.__dict__.clear()


os.register_at_fork(after_in_child=_after_fork)
