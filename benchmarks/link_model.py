"""A slower link for real connections: requests and reads take as long as they would over one.

`SlowConnection` wraps a connection (and the regions that it opens) and holds back each answer until
the pipe (`benchmarks.simulator.link`) would have brought it: its bytes at the link's rate, its
latency there and back, and what the card takes for each read.  What comes over it is what came over
the connection, only later.  Several connections share a link when they share a `Pipe`; those of
several processes get a part of its bandwidth each (`LinkSpec.shared`).
"""

import asyncio
import time
import types
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from benchmarks.simulator.link import LinkSpec, Pipe

Span = tuple[int, int]
"""Offset and length, in bytes."""
Take = Callable[[int, bytes], Iterable[Span] | None]

HEADER_BYTES = 24
SPUN_S = 200e-6
"""Shorter waits are spun: to sleep takes longer than it should."""


@types.coroutine
def _turn() -> Generator[None]:
    """Do as `asyncio.sleep(0)`, with less to it: the link is to take time, not the processor."""
    yield


class Waits:
    """Waiting in the event loop that runs when this is made."""

    def __init__(self) -> None:
        self._turn: Callable[[], Awaitable[None]] = _turn
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._turn = anyio.lowlevel.checkpoint

    async def until(self, when: float) -> None:
        """Return at a time of `time.perf_counter`."""
        left = when - time.perf_counter()
        if left > SPUN_S:
            await anyio.sleep(left - SPUN_S / 2)
        while time.perf_counter() < when:
            await self._turn()


class SlowConnection:
    """An `l5.Connection` at the end of a link; only what brings bytes back is slower."""

    def __init__(
        self,
        connection: Any,
        pipe: Pipe,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep_until: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._pipe = pipe
        self.now = now
        self.sleep_until = sleep_until or Waits().until

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def arrival(self, size_bytes: int, asked_at: float, verbs: int = 1) -> float:
        """Put an answer into the pipe that is here by now; return when it comes out."""
        ready = max(self.now(), asked_at + self._pipe.spec.latency_s)
        return self._pipe.send(size_bytes + HEADER_BYTES, ready, verbs)

    async def request(self, payload: Any, *, deadline: float | None = None) -> bytes:
        """See `l5.Connection.request`."""
        asked_at = self.now()
        reply: bytes = await self._connection.request(payload, deadline=deadline)
        await self.sleep_until(self.arrival(len(reply), asked_at))
        return reply

    async def request_many(self, payloads: Sequence[Any], *, window: int = 64) -> list[bytes]:
        """See `l5.Connection.request_many`; the answers come together."""
        asked_at = self.now()
        replies: list[bytes] = await self._connection.request_many(payloads, window=window)
        size_bytes = sum(map(len, replies))
        await self.sleep_until(self.arrival(size_bytes, asked_at, len(replies)))
        return replies

    async def open_region(self, name: str) -> "SlowRegion":
        """See `l5.Connection.open_region`."""
        return SlowRegion(await self._connection.open_region(name), self)


class SlowRegion:
    """An `l5.abc.RemoteRegion` at the end of a link: nothing of it is mapped here."""

    mapping = None

    def __init__(self, region: Any, connection: SlowConnection) -> None:
        self._region = region
        self._connection = connection
        self._mapped = region.mapping is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    async def read(self, offset: int, length: int) -> bytes:
        """See `l5.abc.RemoteRegion.read`."""
        return (await self.read_many(((offset, length),)))[0]

    async def read_many(self, spans: Sequence[Span]) -> list[bytes]:
        """See `l5.abc.RemoteRegion.read_many`."""
        connection = self._connection
        asked_at = connection.now()
        found: list[bytes]
        if self._mapped:  # that others run is seen to by the link
            read_now = self._region.read_now
            found = [read_now(offset, length) for offset, length in spans]
        else:
            found = await self._region.read_many(spans)
        size_bytes = sum(map(len, found))
        await connection.sleep_until(connection.arrival(size_bytes, asked_at, len(spans)))
        return found

    async def read_each(self, spans: Iterable[Span], take: Take, *, window: int = 16) -> None:
        """See `l5.abc.RemoteRegion.read_each`; what is read at once arrives together."""
        wanted = list(spans)
        while wanted:
            batch, wanted = wanted[:window], wanted[window:]
            for (offset, _), data in zip(batch, await self.read_many(batch), strict=True):
                more = take(offset, data)
                if more:
                    wanted += more


def slow(connection: Any, spec: LinkSpec, clients: int = 1) -> SlowConnection:
    """Put a connection at the end of a link that so many clients share, each in its process."""
    return SlowConnection(connection, Pipe(spec.shared(clients)))
