"""A process that searches a served tree by itself while others change it; see `test_offload`.

python -m tests.catfish._reader URL SEARCHES
"""

import json
import sys

import anyio
import attrs
import numpy as np

from catfish_app import OffloadingClient, RTreeClient
from tests._patience import be_patient
from tests.catfish._support import boxes

STABLE = 2000
EVERYTHING = (-9.0, -9.0, 9.0, 9.0)


async def main(url: str, searches: int) -> None:
    stable = boxes(STABLE)
    random = np.random.default_rng()
    client = await RTreeClient.connect(url, mode="client")
    async with client:
        assert isinstance(client, OffloadingClient)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(searches):
            row = int(random.integers(STABLE))
            ids = await client.search(stable[row])
            assert np.count_nonzero(ids == row) == 1, f"{row}: {ids.tolist()}"
            found, distances = await client.nearest(stable[row], 3)
            assert len(found) == 3 and distances[0] == 0
            assert await client.count(stable[row]) >= 1
            if number % 20 == 0:
                ids = await client.search(EVERYTHING)
                assert len(np.unique(ids)) == len(ids), "an id twice"
                assert np.count_nonzero(ids < STABLE) == STABLE, "one was missed"
                offsets, ids = await client.search_many(stable[:40])
                for i in range(40):
                    assert np.count_nonzero(ids[int(offsets[i]) : int(offsets[i + 1])] == i) == 1
        print(json.dumps(attrs.asdict(client.statistics())))


if __name__ == "__main__":
    be_patient()
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
