"""Fetch chunks: ``python -m benchmarks.catfish._chunks TRANSPORT HOW PATH SECONDS ROUNDS SIZES``.

Starts a server process of its own; a line of JSON for each size: it, and seconds by round.
"""

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread

import l5

REGION = "chunks"
SIZE_BYTES = 8


async def serve(url: str, largest: int) -> None:
    chunk = bytes(largest)
    view = memoryview(chunk)

    def handle(request: bytes) -> memoryview:
        return view[: int.from_bytes(request, "little")]

    with l5.Region.create(largest) as region:
        async with l5.serve(handle, url) as server:
            server.export(REGION, region)
            print(server.urls[0], flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


async def fetch(url: str, how: str, seconds: float, rounds: int, sizes: list[int]) -> None:
    async with await l5.connect(url) as connection:
        region = await connection.open_region(REGION) if how == "read" else None

        async def request(size: int) -> bytes:
            return await connection.request(size.to_bytes(SIZE_BYTES, "little"))

        async def read(size: int) -> bytes:
            assert region is not None
            return await region.read(0, size)

        for size in sizes:
            one = read if region is not None else request
            if len(await one(size)) != size:
                raise RuntimeError(f"asked for {size} bytes, and got others")
            times = [await measure(one, size, seconds) for _ in range(rounds)]
            print(json.dumps([size, times]), flush=True)


async def measure(one: Callable[[int], Awaitable[bytes]], size: int, seconds: float) -> float:
    """Return what one fetch takes."""
    count = 0
    began = now = time.perf_counter()
    while now - began < seconds or not count:
        for _ in range(8):
            await one(size)
        count += 8
        now = time.perf_counter()
    return (now - began) / count


def main(transport: str, how: str, path: str, seconds: str, rounds: str, *sizes: str) -> None:
    url = "l5+tcp://127.0.0.1:0" if transport == "tcp" else f"l5+unix://{path}"
    largest = max(map(int, sizes))
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.catfish._chunks", "serve", url, str(largest)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        reached = server.stdout.readline().strip()
        if transport != "tcp":
            reached += f"?transports={transport}"
        anyio.run(fetch, reached, how, float(seconds), int(rounds), [int(s) for s in sizes])
    finally:
        server.communicate("\n")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        anyio.run(serve, sys.argv[2], int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
