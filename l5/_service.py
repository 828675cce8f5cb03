"""Native services: requests answered by a C function, in threads that never take the GIL.

`NativeService` wraps the workers of `native/service.h` (theory of operation there).  It is given
to `l5.serve` like any handler.  Connections over shared memory are handed to the workers; those
that stayed on sockets are answered by the same C function, called from the event loop.

    event loop                         worker threads
    attach: ring, limits      ---->    serve
    drain_done: ring, fault   <----    let go (client gone, closed, at fault; or stopping)

Between the two a ring, and the socket that is its bell, belong to the worker alone.
"""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import attrs

from . import native
from ._cpu import may_spin
from ._errors import TransportUnavailable
from ._frames import parse_error
from ._last_words import tell_fault
from ._service_values import (
    Counters,
    HandlerError,
    Limits,
    ServiceStatistics,
    address_of,
    check,
    check_number,
    handler_address,
)

if TYPE_CHECKING:
    from ._bootstrap import Established
    from ._fast import Ring

__all__ = ["HandlerError", "NativeService", "ServiceStatistics"]

logger = logging.getLogger("l5.service")

MIB = 1 << 20
GIB = 1 << 30
_MODES = {"poll": 0, "event": 1, "adaptive": 2}
_DRAIN_AT_ONCE = 64


@attrs.define(eq=False)
class _Attached:
    """A connection that a worker holds, and what must outlive that."""

    ring: Ring
    channel: Any
    on_done: Callable[[], None]


class _Waiter:
    """A task that waits for the end of its connection."""

    def __init__(self) -> None:
        self.done = False
        self.event = anyio.Event()

    def finish(self) -> None:
        self.done = True
        self.event.set()


class NativeService:
    """Answer requests by a C function (see `l5/native/l5_handler.h` and docs/native-services.md).

    `handler` is the function's address: an integer, a cffi pointer, or a capsule ``l5.handler``.
    A capsule brings its own state; otherwise `state` is the address that the function gets.  Both
    are kept alive, and so is `keep_alive`, as long as the service.

    Each of `workers` threads serves many connections.  `mode`: ``"poll"`` never sleeps,
    ``"event"`` never spins, ``"adaptive"`` spins for `spin_us` and then sleeps.  Requests longer
    than `max_request_bytes` are answered by an error, as are those for which it would hold more
    than `max_stored_bytes` in all.  Awake, it tells how busy it is every `heartbeat_ms` (0: never).

    All methods belong to the thread of the event loop.  Raises `TransportUnavailable` where the C
    core is missing, `ValueError` or `TypeError` for arguments that cannot be.
    """

    def __init__(
        self,
        handler: Any,
        state: Any = 0,
        *,
        workers: int = 1,
        mode: Literal["poll", "event", "adaptive"] = "adaptive",
        spin_us: int = 50,
        max_request_bytes: int = 64 * MIB,
        max_stored_bytes: int = GIB,
        heartbeat_ms: int = 10,
        keep_alive: object = None,
        name: str = "native",
    ) -> None:
        if not native.available:
            raise TransportUnavailable("native services", native.reason)
        check_number("workers", workers, 1, 256)
        check_number("spin_us", spin_us, 0, 1_000_000)
        check_number("heartbeat_ms", heartbeat_ms, 0, 60_000)
        check_number("max_request_bytes", max_request_bytes, 1, 1 << 40)
        check_number("max_stored_bytes", max_stored_bytes, 1, 1 << 44)
        if mode not in _MODES:
            raise ValueError(f"mode={mode!r}: expected one of {', '.join(map(repr, _MODES))}")
        handler_at, state_at = handler_address(handler)
        self.name = name
        self.workers = workers
        self.mode = mode
        self._keep_alive = (handler, state, keep_alive)
        self._options = {
            "handler": handler_at,
            "state": address_of(state, "state") if state_at is None else state_at,
            "workers": workers,
            "mode": _MODES[mode],
            "spin_ns": spin_us * 1000 if may_spin() else 0,
            "heartbeat_ns": heartbeat_ms * 1_000_000,
            "request_bytes_max": max_request_bytes,
            "stored_bytes_max": max_stored_bytes,
        }
        self._service: Any = None
        self._attached: dict[int, _Attached] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._listening = False
        self._stopped: anyio.Event | None = None
        self._counters: Counters | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._service is None else f"{len(self._attached)} connections"
        return f"<NativeService {self.name!r} {self.mode} workers={self.workers} {state}>"

    @staticmethod
    def include_dir() -> str:
        """Return the folder of ``l5_handler.h``, for the C compiler."""
        return str(Path(native.__file__).parent)

    # ---- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the worker threads; `RuntimeError` when they run already, `OSError`."""
        if self._service is not None:
            raise RuntimeError(f"{self!r} runs already: it belongs to one server at a time")
        lib, ffi = native.lib, native.ffi
        made = ffi.new("struct l5_service **")
        check(lib.l5_service_new(ffi.new("struct l5_service_options *", self._options), made))
        rc = lib.l5_service_start(made[0])
        if rc:
            lib.l5_service_free(made[0])
            check(rc)
        self._service = made[0]
        self._counters = Counters(made[0])
        _running.add(self)

    async def stop(self, grace: float = 5.0) -> None:
        """Take no more connections, answer what was asked within `grace` seconds, end the threads.

        Cancelled, it ends them at once and then raises.  Does nothing when not started.
        """
        if self._stopped is not None:
            await self._stopped.wait()
            return
        if self._service is None:
            return
        lib, service = native.lib, self._service
        self._stopped = stopped = anyio.Event()
        lib.l5_service_stop(service, int(max(grace, 0.0) * 1e9))
        try:
            await self._wait_ended(service)
        except BaseException:
            lib.l5_service_stop(service, 0)
            with anyio.CancelScope(shield=True):
                await self._wait_ended(service)
            raise
        finally:
            self.drain_done()
            anyio.notify_closing(lib.l5_service_done_fd(service))
            self._free()
            self._stopped = None
            stopped.set()

    @staticmethod
    async def _wait_ended(service: Any) -> None:
        fd = native.lib.l5_service_ended_fd(service)
        while not native.lib.l5_service_ended(service):
            await anyio.wait_readable(fd)

    def _free(self) -> None:
        service, self._service = self._service, None
        _running.discard(self)
        if self._counters is not None:
            self._counters.end()
        native.lib.l5_service_free(service)

    def __del__(self) -> None:
        if getattr(self, "_service", None) is not None:
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=1)
            self._free()  # at once: waits for the handlers that run now, then rings may go

    def drop_in_child(self) -> None:
        """(In a forked child) there are no threads here: let go of the copies of everything."""
        if self._service is None:
            return
        for fd in (
            native.lib.l5_service_done_fd(self._service),
            native.lib.l5_service_ended_fd(self._service),
        ):
            os.close(fd)
        self._service = self._counters = None
        for attached in self._attached.values():
            if attached.channel is not None:
                attached.channel.forget()
        self._attached.clear()

    # ---- connections ---------------------------------------------------------------------------

    def attach(
        self,
        ring: Ring,
        *,
        bell_fd: int,
        limits_we_may_send: Limits,
        limits_we_accept: Limits,
        on_done: Callable[[], None],
        channel: Any = None,
    ) -> int:
        """Hand a ring to the worker with the fewest; return the connection's number.

        From now on only the worker may touch the ring and read `bell_fd`, until `on_done` is
        called (by `drain_done`).  Raises `RuntimeError` when the service does not run.
        """
        service = self._running_service()
        lib, ffi = native.lib, native.ffi
        peer = ffi.new("struct l5_service_peer *")
        peer.channel = ring.address
        peer.bell = bell_fd
        peer.in_flight_max = limits_we_accept.in_flight_max
        peer.send_segment_bytes = limits_we_may_send.segment_bytes
        peer.send_credit_bytes = limits_we_may_send.credit_bytes
        peer.send_message_bytes = limits_we_may_send.max_message_bytes
        peer.receive_credit_bytes = limits_we_accept.credit_bytes
        peer.receive_message_bytes = limits_we_accept.max_message_bytes
        peer.heartbeat_ns = limits_we_may_send.heartbeat_ms * 1_000_000
        if self._counters is not None:
            self._counters.see_quota()
        number = ffi.new("uint64_t *")
        check(lib.l5_service_attach(service, peer, number))
        self._attached[number[0]] = _Attached(ring, channel, on_done)
        return number[0]

    def fileno(self) -> int:
        """Return the descriptor that is readable when `drain_done` has something to do."""
        return native.lib.l5_service_done_fd(self._running_service())

    def drain_done(self) -> int:
        """Release the connections that the workers have let go of; return how many."""
        if self._service is None:
            return 0
        done = native.ffi.new("struct l5_service_done[]", _DRAIN_AT_ONCE)
        total = 0
        while True:
            count = native.lib.l5_service_drain(self._service, done, _DRAIN_AT_ONCE)
            for i in range(count):
                self._release(done[i].connection, done[i].fault)
            total += count
            if count < _DRAIN_AT_ONCE:
                return total

    def _release(self, number: int, fault: Any) -> None:
        attached = self._attached.pop(number)
        if fault:
            text = native.ffi.string(fault).decode()
            logger.warning("%s: connection %d broke the protocol: %s", self.name, number, text)
            tell_fault(attached.channel, text)
        attached.on_done()

    async def run_connection(self, made: Established) -> None:
        """Serve one connection over shared memory until it ends; closes its channel.

        Cancelled, it hangs up, waits for the worker to let go, and then raises.
        """
        waiter = _Waiter()
        channel: Any = made.channel
        bell = channel.fileno()
        number = None
        try:
            number = self.attach(
                channel.ring,
                bell_fd=bell,
                limits_we_may_send=made.sends,
                limits_we_accept=made.takes,
                on_done=waiter.finish,
                channel=channel,
            )
            async with anyio.create_task_group() as watchers:
                for fd in made.watched:
                    watchers.start_soon(_hang_up_after, fd, bell)
                await self._wait_done(waiter)
                watchers.cancel_scope.cancel()
        finally:
            if number is not None and not waiter.done:
                native.lib.l5_service_hang_up(bell)
                with anyio.CancelScope(shield=True):
                    await self._wait_done(waiter)
            channel.close()
            for fd in made.watched:
                os.close(fd)

    async def _wait_done(self, waiter: _Waiter) -> None:
        """Wait until a connection has ended; one of the waiting tasks listens for all of them."""
        while not waiter.done:
            if self._listening:
                waiter.event = anyio.Event()
                self._waiters[waiter] = None
                try:
                    await waiter.event.wait()
                finally:
                    del self._waiters[waiter]
                    self._call_listener()  # it may have been called, and is done or cancelled
                continue
            self._listening = True
            try:
                await anyio.wait_readable(self.fileno())
                self.drain_done()
            except anyio.ClosedResourceError:
                pass  # `stop` has drained for the last time
            finally:
                self._listening = False
                self._call_listener()

    def _call_listener(self) -> None:
        """Let one who still waits listen, unless somebody does."""
        if self._listening:
            return
        for heir in self._waiters:
            if not heir.done:
                heir.event.set()
                return

    # ---- requests from sockets -------------------------------------------------------------------

    def call(self, payload: bytes, *, deadline_ns: int = 0, max_reply_bytes: int = GIB) -> bytes:
        """Let the handler answer here and now, without the GIL; for clients on sockets.

        `deadline_ns` is a time of the monotonic clock; 0 is none.  Raises `HandlerError` with what
        the handler, or the service on its behalf, answered.
        """
        lib, ffi = native.lib, native.ffi
        answer = ffi.new("struct l5_service_answer *")
        data = ffi.from_buffer("uint8_t[]", payload)
        rc = lib.l5_service_call(
            self._running_service(), data, len(data), deadline_ns, max_reply_bytes, answer
        )
        check(rc)
        try:
            reply = ffi.buffer(answer.data, answer.size)[:] if answer.size else b""
        finally:
            lib.l5_service_answer_free(answer)
        if answer.failed:
            raise HandlerError(*parse_error(reply))
        return reply

    def statistics(self) -> ServiceStatistics:
        """Return the counters; after `stop` those of its end.  Any thread may call it."""
        if self._counters is None:
            raise RuntimeError(f"{self!r} has not been started")
        return self._counters.read()

    def _running_service(self) -> Any:
        if self._service is None:
            raise RuntimeError(f"{self!r} does not run: l5.serve starts it, or its method start")
        return self._service


async def _hang_up_after(pidfd: int, bell: int) -> None:
    """The peer's process has ended, even if a forked child of it holds the socket open."""
    await anyio.wait_readable(pidfd)
    native.lib.l5_service_hang_up(bell)


_running: weakref.WeakSet[NativeService] = weakref.WeakSet()


def _drop_in_child() -> None:
    for service in list(_running):
        service.drop_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_in_child)
