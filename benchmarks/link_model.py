"""A slower link for real connections: requests and reads take as long as they would over one.

`SlowConnection` wraps a connection (and the regions that it opens) and holds back each answer until
the pipe (`benchmarks.simulator.link`) would have brought it: its bytes at the link's rate, its
latency there and back, and what the card takes for each read.  What comes over it is what came over
the connection, only later.  Several connections share a link when they share a `Pipe`; those of
several processes get a part of its bandwidth each (`LinkSpec.shared`).
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
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


async def _sleep_until(when: float) -> None:
    left = when - time.perf_counter()
    if left > SPUN_S:
        await anyio.sleep(left - SPUN_S / 2)
    while time.perf_counter() < when:
        await anyio.lowlevel.checkpoint()


class SlowConnection:
    """An `l5.Connection` at the end of a link; only what brings bytes back is slower."""

    def __init__(
        self,
        connection: Any,
        pipe: Pipe,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep_until: Callable[[float], Awaitable[None]] = _sleep_until,
    ) -> None:
        self._connection = connection
        self._pipe = pipe
        self._now = now
        self._sleep_until = sleep_until

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def _arrive(self, size_bytes: int, asked_at: float, verbs: int) -> None:
        ready = max(self._now(), asked_at + self._pipe.spec.latency_s)
        await self._sleep_until(self._pipe.send(size_bytes + HEADER_BYTES, ready, verbs))

    async def request(self, payload: Any, *, deadline: float | None = None) -> bytes:
        """See `l5.Connection.request`."""
        asked_at = self._now()
        reply: bytes = await self._connection.request(payload, deadline=deadline)
        await self._arrive(len(reply), asked_at, 1)
        return reply

    async def request_many(self, payloads: Sequence[Any], *, window: int = 64) -> list[bytes]:
        """See `l5.Connection.request_many`; the answers come together."""
        asked_at = self._now()
        replies: list[bytes] = await self._connection.request_many(payloads, window=window)
        await self._arrive(sum(map(len, replies)), asked_at, len(replies))
        return replies

    async def open_region(self, name: str) -> "SlowRegion":
        """See `l5.Connection.open_region`."""
        return SlowRegion(await self._connection.open_region(name), self)

    async def read(self, region: Any, spans: Sequence[Span]) -> list[bytes]:
        """Read some spans of a region at once, over the link."""
        asked_at = self._now()
        if region.mapping is None:
            found: list[bytes] = await region.read_many(spans)
        else:  # that others run is seen to by the link
            read_now = region.read_now
            found = [read_now(offset, length) for offset, length in spans]
        await self._arrive(sum(map(len, found)), asked_at, len(spans))
        return found


class SlowRegion:
    """An `l5.abc.RemoteRegion` at the end of a link: nothing of it is mapped here."""

    mapping = None

    def __init__(self, region: Any, connection: SlowConnection) -> None:
        self._region = region
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    async def read(self, offset: int, length: int) -> bytes:
        """See `l5.abc.RemoteRegion.read`."""
        return (await self._connection.read(self._region, [(offset, length)]))[0]

    async def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """See `l5.abc.RemoteRegion.read_many`."""
        return await self._connection.read(self._region, list(spans))

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
