"""A hash table that its clients read by themselves: cuckoo hashing on versioned pages.

A bucket is a page; a key is in one of two. See README.md for the layout and why no client misses a
key that is there.
"""

import signal
import struct
import sys
from collections import deque
from hashlib import blake2b

import anyio

import l5

HEADER = struct.Struct("<Q")  # how many entries have moved out of this bucket, ever
LENGTHS = struct.Struct("<BB")
KEY_MAX, VALUE_MAX = 54, 80
SLOT_BYTES = LENGTHS.size + KEY_MAX + VALUE_MAX
SLOTS = 7
SEARCH_MAX = 500  # buckets that an insertion looks into for a free slot
LOOKS_MAX = 100  # at buckets that entries move out of all the time
FREE = bytes(SLOT_BYTES)
Steps = dict[int, tuple[int, int] | None]  # to a bucket, and the slot in it, from another one
USAGE = "cuckoo.py serve URL... | put URL KEY VALUE | get URL KEY | delete URL KEY"


def layout_of(region_bytes: int) -> l5.PageLayout:
    if region_bytes < 2048:
        raise ValueError("a table has two buckets of 1024 bytes at least")
    return l5.PageLayout(region_bytes // 1024, 1024)


def buckets_of(key: bytes, count: int) -> tuple[int, int]:
    """Return the two places of a key: different ones, and the same in every process."""
    if not key:
        raise ValueError("a key has a byte at least: none marks a free slot")
    number = int.from_bytes(blake2b(key, digest_size=16).digest(), "little")
    first = number % count
    return first, (first + 1 + (number >> 64) % (count - 1)) % count


def pack(key: bytes, value: bytes) -> bytes:
    if len(key) > KEY_MAX or len(value) > VALUE_MAX:
        raise ValueError(f"keys have at most {KEY_MAX} bytes, values {VALUE_MAX}")
    return LENGTHS.pack(len(key), len(value)) + key.ljust(KEY_MAX, b"\0") + value


class Bucket:
    """One page's payload, taken apart."""

    def __init__(self, payload: bytes) -> None:
        (self.departures,) = HEADER.unpack_from(payload)
        starts = range(HEADER.size, HEADER.size + SLOTS * SLOT_BYTES, SLOT_BYTES)
        self.slots = [payload[start : start + SLOT_BYTES] for start in starts]

    def entry(self, slot: int) -> tuple[bytes, bytes]:
        """Return key and value; what a hostile owner writes as lengths does no harm."""
        data = self.slots[slot]
        key_bytes, value_bytes = LENGTHS.unpack_from(data)
        body = data[LENGTHS.size :]
        return body[: min(key_bytes, KEY_MAX)], body[KEY_MAX : KEY_MAX + value_bytes]

    def find(self, key: bytes) -> int | None:
        """Return the slot of a key (of the empty one: a free slot), or None."""
        return next((slot for slot in range(SLOTS) if self.entry(slot)[0] == key), None)


class CuckooTable:
    """The owner's end: one writer, in whose region every intermediate state is searchable."""

    def __init__(self, region: l5.Region) -> None:
        self.layout = layout_of(region.size_bytes)
        self.pages = l5.PageWriter(region, self.layout)

    def bucket(self, index: int) -> Bucket:
        return Bucket(self.pages.read(index))

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value; OverflowError if nothing can be moved to make room."""
        entry = pack(key, value)
        index, slot = self.find(key) or self.make_room(key)
        self.store(index, slot, entry)

    def delete(self, key: bytes) -> bool:
        found = self.find(key)
        if found is not None:
            self.store(*found, FREE)
        return found is not None

    def find(self, key: bytes) -> tuple[int, int] | None:
        for index in buckets_of(key, self.layout.count):
            slot = self.bucket(index).find(key)
            if slot is not None:
                return index, slot
        return None

    def store(self, index: int, slot: int, entry: bytes, *others: tuple[int, bytes]) -> None:
        patch = (HEADER.size + slot * SLOT_BYTES, entry.ljust(SLOT_BYTES, b"\0"))
        self.pages.update(index, patch, *others)

    def make_room(self, key: bytes) -> tuple[int, int]:
        """Find the shortest way to a free slot, and move the entries on it, the last one first."""
        came_from: Steps = {}
        queue = deque(buckets_of(key, self.layout.count))
        came_from.update(dict.fromkeys(queue))
        while queue and len(came_from) < SEARCH_MAX:
            index = queue.popleft()
            bucket = self.bucket(index)
            free = bucket.find(b"")
            if free is not None:
                return self.move_along(came_from, index, free)
            for slot in range(SLOTS):
                first, second = buckets_of(bucket.entry(slot)[0], self.layout.count)
                other = second if first == index else first
                if other not in came_from:
                    came_from[other] = (index, slot)
                    queue.append(other)
        raise OverflowError("the table is full")

    def move_along(self, came_from: Steps, index: int, free: int) -> tuple[int, int]:
        """Move entries until the free slot is in a bucket of the new key's."""
        while (step := came_from[index]) is not None:
            source, slot = step
            bucket = self.bucket(source)
            self.store(index, free, bucket.slots[slot])  # now it is in both
            self.store(source, slot, FREE, (0, HEADER.pack(bucket.departures + 1)))
            index, free = source, slot
        return index, free


class CuckooReader:
    """A client's end: two pages a lookup, and the owner's processor has no part in it."""

    def __init__(self, region: l5.ReadableRegion) -> None:
        self.pages = l5.PageReader(region, layout_of(region.size_bytes))

    async def get(self, key: bytes) -> bytes | None:
        """Return a key's value; None only if at some moment of the call it was not there."""
        indexes = buckets_of(key, self.pages.layout.count)
        before = None
        for _ in range(LOOKS_MAX):
            buckets = [Bucket(payload) for payload in await self.pages.read_many(indexes)]
            for bucket in buckets:
                slot = bucket.find(key)
                if slot is not None:
                    return bucket.entry(slot)[1]
            # It may have moved between the two reads. If it had, it has left one of them.
            departures = [bucket.departures for bucket in buckets]
            if departures == before:
                return None
            before = departures
        raise l5.TornRead(self.pages.layout.offset_of(indexes[0]), LOOKS_MAX)


async def serve(*urls: str, size_bytes: int = 1 << 20) -> None:
    with l5.Region.create(size_bytes) as region:
        table = CuckooTable(region)

        async def handle(request: bytes) -> bytes:
            command, end = request[:1], 2 + request[1]
            key, value = request[2:end], request[end:]
            if command == b"p":
                table.put(key, value)
            elif not table.delete(key):
                raise l5.HandlerError("KeyError", key.decode(errors="replace"))
            return b""

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with l5.serve(handle, *urls) as server:
                server.export("cuckoo", region)
                print("listening on", *server.urls, flush=True)
                async for _ in signals:
                    break
        table.pages.close()


async def ask(command: str, url: str, key: str, value: str = "") -> None:
    async with await l5.connect(url) as connection:
        name = key.encode()
        if command != "get":
            entry = bytes([len(name)]) + name + value.encode()
            await connection.request(command[0].encode() + entry)
            return
        found = await CuckooReader(await connection.open_region("cuckoo")).get(name)
        print("no such key" if found is None else found.decode())


def main(command: str = "", *words: str) -> None:
    if command == "serve" and words:
        anyio.run(serve, *words)
    elif len(words) == {"put": 3, "get": 2, "delete": 2}.get(command):
        try:
            url, key, *value = words
            anyio.run(ask, command, url, key, *value[:1] or [""])
        except (l5.L5Error, ValueError) as error:
            sys.exit(f"cuckoo: {error}")
    else:
        sys.exit(USAGE)


if __name__ == "__main__":
    main(*sys.argv[1:])
