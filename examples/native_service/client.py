"""Print the most frequent bytes of a file: python client.py URL FILE."""

import struct
import sys
from pathlib import Path

import anyio

import l5


async def main(url: str, path: str) -> None:
    text = await anyio.to_thread.run_sync(Path(path).read_bytes)
    async with await l5.connect(url) as connection:
        counts = struct.unpack("<256Q", await connection.request(text))
        print(f"over {connection.transport}:")
    for byte in sorted(range(256), key=lambda byte: -counts[byte])[:5]:
        print(f"{chr(byte)!r:>6} {counts[byte]}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
