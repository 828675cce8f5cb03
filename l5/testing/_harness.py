"""What the conformance tests stand on: a pair of connections, a server, and payloads."""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, NamedTuple, cast

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import _registry

WATCHDOG_S = 60.0
"""A test that takes longer hangs; nothing here measures time."""

KIB = 1 << 10


class Pair(NamedTuple):
    """Both ends of one connection."""

    client: l5.Connection
    server: l5.Connection


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return reproducible noise, so that a byte out of place is seen."""
    return random.Random(f"{seed}/{size_bytes}").randbytes(size_bytes)


async def settle(rounds: int = 5) -> None:
    """Let other tasks, and the kernel, get as far as they can for now."""
    for _ in range(rounds):
        await anyio.sleep(0.002)


@contextmanager
def the_only(expected: type[BaseException]) -> Generator[None]:
    """Expect one error out of a task group, alone in its group."""
    with pytest.raises(BaseExceptionGroup) as caught:
        yield
    assert isinstance(_single(caught.value), expected), caught.value


def _single(error: BaseException) -> BaseException:
    """Unwrap groups of one."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore
    return error


@asynccontextmanager
async def leased(connection: l5.Connection) -> AsyncGenerator[memoryview]:
    """The next message in place, as a view that ends with the block."""
    async with connection.lease() as message:
        with message.view as view:
            yield view


def why_not(name: str) -> str:
    """Return why a transport cannot be used here; empty if it can."""
    try:
        probe = _registry.get(name).probe()
    except l5.TransportUnavailable as error:
        return error.reason
    return "" if probe.usable else probe.reason


class Desk:
    """A request handler that does what the first byte of a request says.

    ``=`` answer with the request; ``~`` the same after a trip through the event loop; ``#N`` answer
    with N bytes; ``!`` raise; ``?`` return what is no buffer; ``w`` wait for `gate`, then answer.
    """

    def __init__(self) -> None:
        self.gate: anyio.Event = anyio.Event()
        self.waiting: int = 0
        self.cancelled: int = 0
        self.deadlines: list[float | None] = []

    async def handle(self, request: bytes, context: l5.RequestContext) -> Any:
        """Answer one request."""
        command = request[:1]
        self.deadlines.append(context.deadline)
        if command == b"~":
            await anyio.lowlevel.checkpoint()
        elif command == b"#":
            return pattern(int(request[1:]))
        elif command == b"!":
            raise ValueError("no " + request[1:].decode())
        elif command == b"?":
            return 42
        elif command == b"w":
            await self._wait()
        return request

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        except BaseException:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    async def until(self, *, waiting: int | None = None, cancelled: int | None = None) -> None:
        """Wait until that many handlers wait, or have been cancelled."""
        while (waiting is not None and self.waiting != waiting) or (
            cancelled is not None and self.cancelled != cancelled
        ):
            await anyio.sleep(0.001)


class Harness:
    """How a suite makes connections; its class variables are what a transport's author sets."""

    transport: ClassVar[str]
    """The name that connections over this transport have to report."""
    ring_bytes: ClassVar[int] = 64 * KIB
    segment_bytes: ClassVar[int] = 16 * KIB
    """Longer messages travel in several frames; at most a quarter of `ring_bytes`."""
    max_message_bytes: ClassVar[int] = 512 * KIB
    data_window_bytes: ClassVar[int] = 64 * KIB
    buffered_bytes: ClassVar[int] = 16 << 20
    """What the transport itself may hold on the way, in kernel buffers and the like."""
    client_options: ClassVar[Mapping[str, Any]] = {}
    server_options: ClassVar[Mapping[str, Any]] = {}

    def url(self, directory: str) -> str:
        """Return a URL to listen on; clients connect to what the listener reports."""
        raise NotImplementedError("a conformance suite needs the method url(self, directory)")

    def client_url(self, url: str) -> str:
        """Return the URL to connect to, given the one that the listener reports."""
        return url

    @pytest.fixture
    def directory(self) -> Iterator[str]:
        """Make a directory with a short path; skip where the transport cannot be used."""
        reason = why_not(self.transport)
        if reason:
            pytest.skip(f"transport {self.transport!r} cannot be used: {reason}")
        with tempfile.TemporaryDirectory(prefix="l5-") as directory:
            yield directory

    def _limits(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "ring_bytes": self.ring_bytes,
            "segment_bytes": self.segment_bytes,
            "max_message_bytes": self.max_message_bytes,
            "data_window_bytes": self.data_window_bytes,
            "credit_bytes": 2 * self.segment_bytes,
            **more,
        }

    def _for_client(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return self._limits({**self.client_options, **more})

    def _for_server(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return self._limits({**self.server_options, **more})

    @asynccontextmanager
    async def pair(self, directory: str, **options: Any) -> AsyncGenerator[Pair]:
        """Both ends of a connection in this task's event loop, closed at the end."""
        sender, receiver = anyio.create_memory_object_stream[l5.Connection](1)
        with anyio.fail_after(WATCHDOG_S):
            async with (
                sender,
                receiver,
                await l5.listen(self.url(directory), **self._for_server(options)) as listener,
                anyio.create_task_group() as group,
            ):
                group.start_soon(listener.serve, sender.send, group)
                async with await self._connect(listener.urls[0], options) as client:
                    async with await receiver.receive() as server:
                        assert server.transport == self.transport, server.upgrade_report
                        yield Pair(client, server)
                group.cancel_scope.cancel()

    @asynccontextmanager
    async def serving(
        self, handler: Any, directory: str, **options: Any
    ) -> AsyncGenerator[tuple[l5.Connection, l5.Server]]:
        """A server of `handler` and a connection to it, in this task's event loop."""
        server_only = {"grace", "per", "connections_max", "regions_max"}
        shared = {name: value for name, value in options.items() if name not in server_only}
        with anyio.fail_after(WATCHDOG_S):
            async with (
                l5.serve(handler, self.url(directory), **self._for_server(options)) as server,
                await self._connect(server.urls[0], shared) as client,
            ):
                yield client, server

    async def _connect(self, url: str, options: Mapping[str, Any]) -> l5.Connection:
        connection = await l5.connect(self.client_url(url), **self._for_client(options))
        if connection.transport != self.transport:
            report = connection.upgrade_report
            await connection.aclose()
            pytest.fail(f"{self.transport} was not used: {report}")
        return connection
