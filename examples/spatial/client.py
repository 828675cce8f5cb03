"""Search the cities. Usage: client.py URL"""

import sys

import anyio
from cities import NAMES

from catfish_app import RTreeClient

EUROPE = (13.0, 47.0, 22.0, 53.0)
QUARTERS = [(-180, 0, 0, 90), (0, 0, 180, 90), (0, -90, 180, 0), (-180, -90, 0, 0)]
ATLANTIS = (-30.0, 40.0, -25.0, 42.0)


async def main(url: str) -> None:
    async with await RTreeClient.connect(url) as tree:
        print(tree.connection.upgrade_report)

        ids = await tree.search(EUROPE)
        print("in central Europe:", ", ".join(sorted(NAMES[id] for id in ids)))

        ids, distances = await tree.nearest((2.0, 48.0), k=3)
        places = zip(ids, distances, strict=True)
        found = ", ".join(f"{NAMES[id]} ({distance:.1f} degrees)" for id, distance in places)
        print(f"nearest to (2.0, 48.0): {found}")

        await tree.insert(ATLANTIS, id=1000)
        [id] = await tree.search((-27.0, 41.0, -27.0, 41.0))
        print("after Atlantis was founded:", "Atlantis" if id == 1000 else NAMES[id])
        await tree.delete(ATLANTIS, id=1000)

        offsets, _ = await tree.search_many(QUARTERS)
        counts = (offsets[1:] - offsets[:-1]).tolist()
        print(f"many at once: {sum(counts)} cities in 4 quarters of the world: {counts}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "l5+unix:///tmp/cities.sock")
