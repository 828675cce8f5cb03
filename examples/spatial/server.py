"""Serve the cities. Usage: server.py URL..."""

import signal
import sys

import anyio
from cities import POINTS

from catfish_app import RTree, serve_tree


async def main(*urls: str) -> None:
    tree = RTree.bulk(POINTS, capacity=1000)  # ids are the row numbers
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serve_tree(tree, *urls, workers=2) as server:
            print(f"{len(tree)} cities on", *server.urls, flush=True)
            async for _ in signals:
                break


if __name__ == "__main__":
    anyio.run(main, *(sys.argv[1:] or ["l5+unix:///tmp/cities.sock"]))
