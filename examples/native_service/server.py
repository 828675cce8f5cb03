"""Serve histograms from two worker threads: python server.py URL."""

import sys

import anyio
import histogram  # pyright: ignore (made by build.py)

import l5


async def main(url: str) -> None:
    service = l5.NativeService(histogram.handler(), workers=2)
    async with l5.serve(service, url) as server:
        print(*server.urls, flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
