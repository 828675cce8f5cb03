"""`NativeService` over rings that the test makes itself: frames in, frames out."""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from l5 import HandlerError, NativeService, TransportUnavailable, native
from l5._frames import Flag, Kind, parse_error
from l5._hello import Limits
from tests.native import _handlers

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)

RING = 1 << 16
LIMITS = Limits(
    max_message_bytes=1 << 20,
    segment_bytes=4096,
    data_window_bytes=1 << 16,
    credit_bytes=1 << 14,
    in_flight_max=8,
)
MODES = ("poll", "event", "adaptive")


class Client:
    """The client's end of a pair of rings, and the server's end until it is attached."""

    def __init__(self) -> None:
        fd = native.lib.l5_segment_create(RING)
        assert fd >= 0
        self.sock, self.server_sock = socket.socketpair()
        sizes = {"ring_bytes": RING, "send_limit": 4096, "receive_limit": 4096}
        self.ring = native.Ring(fd=fd, server=False, bell=self.sock.fileno(), seal=False, **sizes)
        self.server_ring = native.Ring(
            fd=fd, server=True, bell=self.server_sock.fileno(), seal=True, **sizes
        )
        os.close(fd)
        self.done = 0

    def attach(self, service: NativeService) -> int:
        return service.attach(
            self.server_ring,
            bell_fd=self.server_sock.fileno(),
            limits_we_may_send=LIMITS,
            limits_we_accept=LIMITS,
            on_done=self.on_done,
        )

    def on_done(self) -> None:
        self.done += 1

    async def send(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        while not self.ring.try_send(kind, flags, id, payload):
            await self._sleep(space=True)

    async def receive(self) -> tuple[int, int, int, bytes]:
        while (frame := self.ring.try_receive()) is None:
            await self._sleep(space=False)
        return frame

    async def _sleep(self, space: bool) -> None:
        if self.ring.arm(space):
            with anyio.fail_after(60):
                await anyio.wait_readable(self.sock)
            self.sock.recv(64)
            self.ring.disarm()

    async def request(self, id: int, payload: bytes) -> tuple[int, int, int, bytes]:
        await self.send(Kind.REQUEST, 0, id, payload)
        return await self.receive()

    def close(self) -> None:
        self.ring.close()
        self.server_ring.close()
        self.sock.close()
        self.server_sock.close()


@contextmanager
def clients(count: int = 1) -> Iterator[list[Client]]:
    made = [Client() for _ in range(count)]
    try:
        yield made
    finally:
        for client in made:
            client.close()


def make(mode: Any = "adaptive", **options: Any) -> NativeService:
    return NativeService(_handlers.address(), mode=mode, keep_alive=_handlers.library(), **options)


async def await_done(service: NativeService, *gone: Client) -> None:
    with anyio.fail_after(60):
        while not all(client.done for client in gone):
            await anyio.wait_readable(service.fileno())
            service.drain_done()


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_requests_are_answered(mode: str) -> None:
    service = make(mode)
    service.start()
    with clients() as [client]:
        assert client.attach(service) == 1
        for id in range(1, 200):
            payload = b"e" * id
            assert await client.request(id, payload) == (Kind.RESPONSE, 0, id, payload)
        kind, _, id, payload = await client.request(200, b"f")
        assert (kind, id) == (Kind.ERROR, 200)
        assert parse_error(payload) == ("LookupError", "nö such thing")
        statistics = service.statistics()
        assert (statistics.requests, statistics.errors, statistics.connections) == (200, 1, 1)
        await service.stop()
        assert client.done == 1
        assert await client.receive() == (Kind.CLOSE, 0, 0, b"")
    assert service.statistics().connections == 0


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_every_connection_of_many_is_served(mode: str) -> None:
    service = make(mode, workers=2)
    service.start()
    with clients(24) as many:
        for client in many:
            client.attach(service)
        workers: set[bytes] = set()
        for id in range(1, 6):
            for client in many:
                await client.send(Kind.REQUEST, 0, id, b"w")
            for client in many:
                workers.add((await client.receive())[3])
        assert workers == {b"\0\0\0\0", b"\1\0\0\0"}  # the fewest connections: one each in turn
        for client in many[::2]:
            client.sock.shutdown(socket.SHUT_RDWR)
        await await_done(service, *many[::2])
        assert service.statistics().connections == 12
        for client in many[1::2]:
            assert (await client.request(9, b"e"))[3] == b"e"
        await service.stop()
        assert all(client.done == 1 for client in many)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_at_fault_is_let_go(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    service = make(mode)
    service.start()
    with clients(2) as [bad, good]:
        bad.attach(service)
        good.attach(service)
        await bad.send(Kind.DATA, 0, 1, b"not for you")
        await await_done(service, bad)
        assert "connection 1 broke the protocol: a data message" in caplog.text
        assert (await good.request(1, b"e"))[3] == b"e"
        assert service.statistics().faults == 1
        await service.stop()


@pytest.mark.anyio
async def test_stop_answers_what_was_asked() -> None:
    service = make()
    service.start()
    with clients() as [client]:
        client.attach(service)
        for id in (1, 2, 3):
            await client.send(Kind.REQUEST, 0, id, _handlers.command("s", 20))
        await service.stop(20)
        for id in (1, 2, 3):
            assert (await client.receive())[:3] == (Kind.RESPONSE, 0, id)
        assert (await client.receive())[0] == Kind.CLOSE


@pytest.mark.anyio
async def test_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    service = make()
    service.start()
    with clients() as [client]:
        client.attach(service)
        await client.send(Kind.REQUEST, 0, 1, _handlers.command("n", 1 << 20))
        await service.stop(0.05)
        assert client.done == 1


@pytest.mark.anyio
async def test_a_cancelled_stop_ends_at_once() -> None:
    service = make()
    service.start()
    with clients() as [client]:
        client.attach(service)
        await client.send(Kind.REQUEST, 0, 1, _handlers.command("n", 1 << 20))
        assert (await client.receive())[:3] == (Kind.RESPONSE, Flag.MORE, 1)
        with anyio.move_on_after(0.01) as scope:
            await service.stop(3600)
        assert scope.cancelled_caught
        assert client.done == 1
        with pytest.raises(RuntimeError, match="does not run"):
            service.fileno()


@pytest.mark.anyio
async def test_a_service_starts_again() -> None:
    service = make()
    await service.stop()  # not started: nothing to do
    for _ in range(2):
        service.start()
        with pytest.raises(RuntimeError, match="runs already"):
            service.start()
        with clients() as [client]:
            client.attach(service)
            assert (await client.request(1, b"e"))[3] == b"e"
            async with anyio.create_task_group() as group:  # both wait for the same end
                group.start_soon(service.stop)
                group.start_soon(service.stop)
            with pytest.raises(RuntimeError, match="does not run"):
                client.attach(service)


def test_a_service_that_is_forgotten_ends() -> None:
    service = make()
    service.start()
    with clients() as [client]:
        client.attach(service)
        with pytest.warns(ResourceWarning, match="was not stopped"):
            del service


def test_a_forked_child_has_no_service() -> None:
    service = make()
    service.start()
    with clients() as [client]:
        client.attach(service)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
            pid = os.fork()
        if pid == 0:
            try:
                service.call(b"e")
            except RuntimeError:
                os._exit(0 if "stopped" in repr(service) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert service.call(b"e") == b"e"
        anyio.run(service.stop)
        assert client.done == 1


def test_calls_from_the_event_loop() -> None:
    service = make(max_request_bytes=1000)
    with pytest.raises(RuntimeError, match="does not run"):
        service.call(b"e")
    service.start()
    try:
        assert service.call(b"") == b""
        assert service.call(b"echo") == b"echo"
        assert service.call(b"w") == b"\1\0\0\0"  # one more than the last worker's number
        with pytest.raises(HandlerError) as raised:
            service.call(b"f")
        assert (raised.value.type, raised.value.message) == ("LookupError", "nö such thing")
        with pytest.raises(HandlerError, match="Invalid argument"):
            service.call(b"?")
        with pytest.raises(HandlerError, match="DeadlineExceeded"):
            service.call(b"e", deadline_ns=1)
        with pytest.raises(HandlerError, match="MessageTooLarge: the request"):
            service.call(b"e" * 1001)
        with pytest.raises(HandlerError, match="MessageTooLarge: the answer"):
            service.call(_handlers.command("n", 5000), max_reply_bytes=4999)
    finally:
        anyio.run(service.stop)


@pytest.mark.anyio
async def test_a_capsule_brings_its_state() -> None:
    state = native.ffi.new("uint32_t *", 40)
    address = int(native.ffi.cast("uintptr_t", state))
    service = NativeService(_handlers.capsule(address), keep_alive=(state, _handlers.library()))
    service.start()
    assert service.call(b"c") == (41).to_bytes(4, "little")
    with clients() as [client]:
        client.attach(service)
        assert (await client.request(1, b"c"))[3] == (42).to_bytes(4, "little")
        await service.stop()


def test_pointers_of_cffi_are_taken() -> None:
    state = native.ffi.new("uint32_t *", 1)
    service = NativeService(native.ffi.cast("void *", _handlers.address()), state)
    service.start()
    assert service.call(b"c") == (2).to_bytes(4, "little")
    anyio.run(service.stop)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"handler": 0}, "not NULL"),
        ({"workers": 0}, "workers=0"),
        ({"mode": "fast"}, "expected one of 'poll', 'event', 'adaptive'"),
        ({"spin_us": -1}, "spin_us=-1"),
        ({"max_request_bytes": 0}, "max_request_bytes=0"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NativeService(**{"handler": _handlers.address(), **arguments})


def test_wrong_handlers_are_refused() -> None:
    with pytest.raises(TypeError, match="handler: expected an address"):
        NativeService("handle")
    with pytest.raises(TypeError, match="state: expected an address"):
        NativeService(_handlers.address(), state=1.5)
    with pytest.raises(ValueError, match="incorrect name"):
        NativeService(_handlers.capsule(0, b"something.else"))


def test_without_the_extension_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "it was not built")
    with pytest.raises(TransportUnavailable, match="it was not built"):
        make()
