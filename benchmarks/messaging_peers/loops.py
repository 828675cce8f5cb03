"""The measured loops, with an event loop and without."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

PAYLOAD = bytes(range(64))
BATCH = 16
"""Requests between two looks at the clock."""
SAMPLES_MAX = 20_000

Request = Callable[[bytes], Awaitable[bytes]]
Result = dict[str, Any]


class NoEcho(Exception):
    """The server sent something else than what it got."""


def check(reply: bytes) -> None:
    if reply != PAYLOAD:
        raise NoEcho(repr(reply))


def sleep_until(at: float) -> None:
    """Wait for the moment at which all clients begin (of the monotonic clock)."""
    time.sleep(max(0.0, at - time.monotonic()))


async def request_rate(request: Request, warm_up: float, at: float, seconds: float) -> Result:
    asked = await _warm_up(request, warm_up)
    sleep_until(at)
    count, start = 0, time.perf_counter()
    end = start + seconds
    while True:
        for _ in range(BATCH):
            await request(PAYLOAD)
        count += BATCH
        now = time.perf_counter()
        if now >= end:
            return {"count": count, "seconds": now - start, "asked": asked + count}


async def request_times(request: Request, warm_up: float, at: float, seconds: float) -> Result:
    await _warm_up(request, warm_up)
    sleep_until(at)
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    before = 0
    while before < end and len(times) < SAMPLES_MAX:
        before = clock()
        await request(PAYLOAD)
        times.append(clock() - before)
    return percentiles(times)


async def _warm_up(request: Request, seconds: float) -> int:
    """Ask for a while; return how often."""
    end = time.perf_counter() + seconds
    check(await request(PAYLOAD))
    asked = 1
    while time.perf_counter() < end:
        check(await request(PAYLOAD))
        asked += 1
    return asked


async def transfer_rate(
    transfer: Callable[..., Awaitable[int]], warm_up: float, at: float, seconds: float, **how: Any
) -> Result:
    del warm_up  # once will do: it is long
    await transfer(**how)
    sleep_until(at)
    moved, start = 0, time.perf_counter()
    while True:
        moved += await transfer(**how)
        now = time.perf_counter()
        if now >= start + seconds:
            return {"count": moved, "seconds": now - start}


async def idle(request: Request, seconds: float) -> Result:
    """Be connected, and do nothing."""
    check(await request(PAYLOAD))
    await anyio.sleep(seconds)
    return {}


ASYNC: dict[str, Callable[..., Awaitable[Result]]] = {
    "rate": request_rate,
    "times": request_times,
    "transfer": transfer_rate,
    "idle": idle,
}


def blocking_request_rate(
    request: Callable[[bytes], bytes], warm_up: float, at: float, seconds: float
) -> Result:
    asked, end = 0, time.perf_counter() + warm_up
    while time.perf_counter() < end:
        check(request(PAYLOAD))
        asked += 1
    sleep_until(at)
    count, start = 0, time.perf_counter()
    end = start + seconds
    while True:
        for _ in range(BATCH):
            request(PAYLOAD)
        count += BATCH
        now = time.perf_counter()
        if now >= end:
            return {"count": count, "seconds": now - start, "asked": asked + count}


def blocking_request_times(
    request: Callable[[bytes], bytes], warm_up: float, at: float, seconds: float
) -> Result:
    blocking_request_rate(request, warm_up, 0.0, 0.0)
    sleep_until(at)
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    before = 0
    while before < end and len(times) < SAMPLES_MAX:
        before = clock()
        request(PAYLOAD)
        times.append(clock() - before)
    return percentiles(times)


def blocking_transfer_rate(
    transfer: Callable[[], int], warm_up: float, at: float, seconds: float
) -> Result:
    del warm_up
    transfer()
    sleep_until(at)
    moved, start = 0, time.perf_counter()
    while True:
        moved += transfer()
        now = time.perf_counter()
        if now >= start + seconds:
            return {"count": moved, "seconds": now - start}


def blocking_idle(request: Callable[[bytes], bytes], seconds: float) -> Result:
    check(request(PAYLOAD))
    time.sleep(seconds)
    return {}


BLOCKING: dict[str, Callable[..., Result]] = {
    "rate": blocking_request_rate,
    "times": blocking_request_times,
    "transfer": blocking_transfer_rate,
    "idle": blocking_idle,
}


def percentiles(times_ns: list[int]) -> Result:
    ordered = sorted(times_ns)
    last = len(ordered) - 1
    return {
        f"p{percent:g}_us": ordered[min(last, int(len(ordered) * percent / 100))] / 1000
        for percent in (50, 99, 99.9)
    }
