"""Answer each request with itself. Usage: server.py URL..."""

import signal
import sys

import anyio

import l5


async def handle(request: bytes) -> bytes:
    if request.startswith(b"slow"):
        await anyio.sleep(0.1)  # others are answered meanwhile
    return request


async def main(*urls: str) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with l5.serve(handle, *urls) as server:
            for url in server.urls:
                print(f"listening on {url}", flush=True)
            async for _ in signals:
                break  # leaving the block lets running requests finish


if __name__ == "__main__":
    anyio.run(main, *(sys.argv[1:] or ["l5+unix:///tmp/echo.sock"]))
