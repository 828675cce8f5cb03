"""`examples/cuckoo`: a table like a dict, in which readers miss nothing while entries move."""

import importlib.util
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import l5

PATH = Path(__file__).parents[2] / "examples" / "cuckoo" / "cuckoo.py"
pytestmark = pytest.mark.checkout


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuckoo", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cuckoo = load()


class OneByOne:
    """What a `PageReader` over a mapping does, with a hook between the pages of one call."""

    def __init__(self, region: l5.Region) -> None:
        self.layout = cuckoo.layout_of(region.size_bytes)
        self.owner = l5.PageWriter(region, self.layout)
        self.between: Callable[[], object] = lambda: None
        self.pages = 0

    async def read_many(self, indexes: Sequence[int]) -> list[bytes]:
        found: list[bytes] = []
        for index in indexes:
            if found:
                self.between()
            found.append(self.owner.read(index))
            self.pages += 1
        return found


def made(region: l5.Region) -> tuple[Any, Any, OneByOne]:
    """Return a table, a reader, and the pages that it reads."""
    pages = OneByOne(region)
    reader = cuckoo.CuckooReader.__new__(cuckoo.CuckooReader)
    reader.pages = pages
    return cuckoo.CuckooTable(region), reader, pages


@pytest.fixture
def region() -> Iterator[l5.Region]:
    with l5.Region.create(16 * 1024) as made:
        yield made


def key_of(number: int) -> bytes:
    return b"key %d" % number


@pytest.mark.anyio
async def test_it_is_a_dict(region: l5.Region) -> None:
    table, reader, _ = made(region)
    model: dict[bytes, bytes] = {}
    choice = random.Random(5)
    for _ in range(2000):
        key = key_of(choice.randrange(120))
        if choice.random() < 0.7 and len(model) < 90:
            model[key] = choice.randbytes(choice.randrange(81))
            table.put(key, model[key])
        else:
            assert table.delete(key) == (model.pop(key, None) is not None)
        probe = key_of(choice.randrange(120))
        assert await reader.get(probe) == model.get(probe)
    for number in range(120):
        assert await reader.get(key_of(number)) == model.get(key_of(number))


@pytest.mark.anyio
async def test_a_full_table_says_so_and_loses_nothing(region: l5.Region) -> None:
    table, reader, _ = made(region)
    kept = 0
    with pytest.raises(OverflowError, match="full"):
        for kept in range(16 * 7 + 1):
            table.put(key_of(kept), b"%d" % kept)
    assert kept > 16 * 7 * 0.9
    for number in range(kept):
        assert await reader.get(key_of(number)) == b"%d" % number


@pytest.mark.anyio
async def test_a_lookup_reads_two_pages_and_a_miss_four(region: l5.Region) -> None:
    table, reader, pages = made(region)
    table.put(b"here", b"1")
    assert await reader.get(b"here") == b"1"
    assert pages.pages == 2
    assert await reader.get(b"not here") is None
    assert pages.pages == 6


def move(table: Any, key: bytes) -> None:
    """Move a key to its other bucket, as an insertion does."""
    index, slot = table.find(key)
    (other,) = set(cuckoo.buckets_of(key, 16)) - {index}
    free = table.bucket(other).find(b"")
    assert free is not None
    assert table.move_along({other: (index, slot), index: None}, other, free) == (index, slot)


@pytest.mark.anyio
@pytest.mark.parametrize("moves", range(1, 6))
async def test_a_key_that_moves_between_two_reads_is_found(region: l5.Region, moves: int) -> None:
    """Whatever look it moves in, and however often."""
    table, reader, pages = made(region)
    table.put(b"wanderer", b"1")
    if table.find(b"wanderer")[0] == cuckoo.buckets_of(b"wanderer", 16)[0]:
        move(table, b"wanderer")  # it begins in the bucket that is read last
    left = moves

    def between() -> None:
        nonlocal left
        if left:
            left -= 1
            move(table, b"wanderer")

    pages.between = between
    assert await reader.get(b"wanderer") == b"1"
    pages.between = lambda: move(table, b"wanderer")
    if table.find(b"wanderer")[0] == cuckoo.buckets_of(b"wanderer", 16)[1]:
        looked = pages.pages
        assert await reader.get(b"wanderer") == b"1"
        assert pages.pages > looked + 2, "it did not move out of the reader's sight"


@pytest.mark.anyio
async def test_clients_find_what_is_there_while_others_come_and_go(tmp_path: Path) -> None:
    """A thread fills the table to the brim and empties it; a client looks for keys that stay."""

    async def handle(request: bytes) -> bytes:
        return request

    stop = threading.Event()
    with l5.Region.create(16 * 1024) as region:
        table = cuckoo.CuckooTable(region)
        for number in range(50):
            table.put(key_of(number), b"stays %d" % number)

        def churn() -> None:
            choice = random.Random(1)
            while not stop.is_set():
                passing = [b"passing %d" % choice.randrange(1000) for _ in range(45)]
                for key in passing:
                    table.put(key, b"passes")
                for key in passing:
                    table.delete(key)

        thread = threading.Thread(target=churn)
        url = f"l5+unix://{tmp_path}/s"
        async with l5.serve(handle, url) as server:
            server.export("cuckoo", region)
            async with await l5.connect(url) as connection:
                reader = cuckoo.CuckooReader(await connection.open_region("cuckoo"))
                thread.start()
                try:
                    for turn in range(20):
                        for number in range(50):
                            found = await reader.get(key_of(number))
                            assert found == b"stays %d" % number, (turn, number)
                        await anyio.lowlevel.checkpoint()
                finally:
                    stop.set()
                    await anyio.to_thread.run_sync(thread.join)
                reader.pages.close()
        moved = sum(table.bucket(index).departures for index in range(16))
        assert moved > 0, "nothing was ever displaced"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [(b"", b"", "a byte"), (b"k" * 55, b"", "54"), (b"k", b"v" * 81, "80")],
)
def test_what_does_not_fit(region: l5.Region, key: bytes, value: bytes, said: str) -> None:
    table = cuckoo.CuckooTable(region)
    with pytest.raises(ValueError, match=said):
        table.put(key, value)


def test_every_intermediate_state_has_all_keys(region: l5.Region) -> None:
    table, _, _ = made(region)
    there: list[bytes] = []
    store, states = table.store, 0

    def store_and_look(*arguments: Any) -> None:
        nonlocal states
        store(*arguments)
        states += 1
        assert all(table.find(key) for key in there)

    table.store = store_and_look
    with pytest.raises(OverflowError):
        for number in range(16 * 7 + 1):
            table.put(key_of(number), b"")
            there.append(key_of(number))
    assert states > len(there) + 10, "hardly anything was moved"
