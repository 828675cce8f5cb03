"""Headers of snapshots that somebody made: a clear refusal, or one that the file bears out.

Every number may be anything, with the right checksum; every byte may be spoilt; the file may be as
long as it likes.  Nothing is allocated by a number that was not compared with the file first.
"""

import mmap
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catfish_app import RTree, SnapshotError, _snapshot
from catfish_app._kernels import lib
from tests.catfish._support import boxes

PAGE = _snapshot.PAGE
WIDTHS = [32] * 8 + [64] * 3 + [32]
NAMES = [field.name for field in attrs.fields(_snapshot._Header)]
REASONS = (
    "no snapshot", "within its header", "its layout is", "header was damaged", "-endian",
    "load the data again", "contradict each other", "was cut off", "behind its end",
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "tree.snapshot"
    RTree.bulk(boxes(500)).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("made") / "tree.snapshot"


def with_fields(content: bytes, changed: dict[int, int]) -> bytes:
    """Replace numbers of the header; its checksum is right."""
    fields = list(_snapshot._FIELDS.unpack(content[: _snapshot._FIELDS.size]))
    for index, value in changed.items():
        fields[1 + index] = value & ((1 << WIDTHS[index]) - 1)
    packed = _snapshot._FIELDS.pack(*fields)
    header = packed + struct.pack("<I", zlib.crc32(packed))
    return header.ljust(PAGE, b"\0") + content[PAGE:]


def numbers(good_size: int) -> st.SearchStrategy[int]:
    """What sizes and counts could be, if somebody wanted them to do harm."""
    edges = [0, 1, 2, 1023, 1024, 1025, PAGE, good_size - PAGE, good_size, 1 << 30, (1 << 30) - 1]
    edges += [1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1]
    return st.sampled_from(edges) | st.integers(0, (1 << 64) - 1) | st.integers(0, 300)


def opened(path: Path) -> _snapshot.Reader | None:
    """Open a file whose header may be wrong: it is refused for a reason that is said."""
    try:
        return _snapshot.Reader(path)
    except SnapshotError as error:
        assert str(path) in str(error)
        assert any(reason in str(error) for reason in REASONS), str(error)
        return None


def check(path: Path) -> None:
    """What is taken of a header is what there is in the file, and bounded."""
    reader = opened(path)
    if reader is None:
        return
    with reader:
        header = reader._header
        assert PAGE + header.image_bytes == path.stat().st_size
        assert header.nodes * header.node_bytes < header.image_bytes
        assert header.nodes <= header.capacity_nodes < lib.RT_MAX_NODES
        needed = lib.rt_nodes_for(reader.capacity)
        assert header.capacity_nodes <= needed <= 2 * header.capacity_nodes + 64


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_numbers(data: st.DataObject, good: bytes, path: Path) -> None:
    values = numbers(len(good))
    changed = data.draw(st.dictionaries(st.integers(0, len(NAMES) - 1), values, max_size=4))
    made = with_fields(good, changed)
    length = data.draw(st.just(len(made)) | st.integers(0, len(made) + 3 * PAGE))
    path.write_bytes(made[:length].ljust(length, b"\0"))
    check(path)


@settings(max_examples=100, deadline=None)
@given(nodes=st.integers(0, 1 << 64), more=st.integers(0, 1 << 64), holes=st.booleans())
@example(nodes=1, more=0, holes=True)
@example(nodes=(1 << 30) - 2, more=0, holes=False)
@example(nodes=(1 << 54) - 4, more=0, holes=False)  # whose bytes overflow 64 bits
def test_numbers_that_agree_with_each_other_have_to_with_the_file(
    nodes: int, more: int, holes: bool, good: bytes, path: Path
) -> None:
    image = 4096 + nodes * lib.RT_NODE_BYTES
    index = {name: number for number, name in enumerate(NAMES)}
    changed = {
        index["nodes"]: nodes,
        index["capacity_nodes"]: nodes + more,
        index["image_bytes"]: image,
    }
    path.write_bytes(with_fields(good, changed)[:PAGE])
    if holes and image < 1 << 24:
        with path.open("r+b") as file:
            file.truncate(PAGE + image)
    check(path)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_bytes(data: st.DataObject, good: bytes, path: Path) -> None:
    made = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(0, 80))] = data.draw(st.integers(0, 255))
    path.write_bytes(made[: data.draw(st.integers(0, len(made)))])
    check(path)


def test_a_file_of_holes_is_read_no_further_than_its_sums(good: bytes, path: Path) -> None:
    """A large file that takes no room on the disk: its checksum tells."""
    nodes = 40_000
    index = {name: number for number, name in enumerate(NAMES)}
    changed = {
        index["nodes"]: nodes,
        index["capacity_nodes"]: nodes,
        index["image_bytes"]: 4096 + nodes * 1024,
    }
    path.write_bytes(with_fields(good, changed)[:PAGE])
    with path.open("r+b") as file:
        file.truncate(PAGE + 4096 + nodes * 1024)
    with pytest.raises(SnapshotError, match="checksum"):
        RTree.open(path)


def with_room(content: bytes, nodes: int) -> bytes:
    return with_fields(content, {NAMES.index("capacity_nodes"): nodes})


@pytest.mark.parametrize("shared", [False, True])
def test_room_out_of_proportion_has_to_be_asked_for(
    good: bytes, path: Path, *, shared: bool
) -> None:
    path.write_bytes(with_room(good, lib.RT_MAX_NODES // 64))
    for capacity in (None, 1_000_000):
        with pytest.raises(SnapshotError, match=r"it holds 500: .* give a capacity of"):
            RTree.open(path, capacity=capacity, shared=shared)
    most = _snapshot.ROOM_BYTES // lib.RT_NODE_BYTES
    path.write_bytes(with_room(good, most + 2))
    with pytest.raises(SnapshotError, match="asks for room"):
        RTree.open(path, shared=shared)
    path.write_bytes(with_room(good, most - 64))
    assert len(RTree.open(path)) == 500


def test_a_large_file_may_have_room_in_proportion(good: bytes, path: Path) -> None:
    """More than any file may have: its checksum is looked at, and not its room."""
    nodes = 40_000
    index = {name: number for number, name in enumerate(NAMES)}
    changed = {
        index["nodes"]: nodes,
        index["capacity_nodes"]: 15 * nodes,
        index["image_bytes"]: 4096 + nodes * 1024,
    }
    path.write_bytes(with_fields(good, changed)[:PAGE])
    with path.open("r+b") as file:
        file.truncate(PAGE + 4096 + nodes * 1024)
    with _snapshot.Reader(path) as reader:
        assert lib.rt_arena_bytes(15 * nodes) > _snapshot.ROOM_BYTES
        assert reader.room(None) == reader.capacity


def test_room_that_is_only_promised_is_not_taken(good: bytes, path: Path) -> None:
    """The capacity of a file is address space, and no memory before it is used."""
    before = resident_bytes()
    path.write_bytes(with_room(good, lib.RT_MAX_NODES // 64))
    with pytest.raises(SnapshotError) as caught:
        RTree.open(path)
    tree = RTree.open(path, capacity=int(str(caught.value).rpartition(" ")[2]))
    tree.check()
    assert len(tree) == 500 and tree.stats(walk=False).arena_bytes > 1 << 33
    assert resident_bytes() - before < 64 << 20
    assert np.all(np.sort(tree.search(-np.inf, -np.inf, np.inf, np.inf)) == np.arange(500))


def resident_bytes() -> int:
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
