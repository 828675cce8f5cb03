"""Snapshots: what comes back, what a crash leaves, and files that are damaged or made to harm."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catfish_app import RTree, SnapshotError, _snapshot
from catfish_app._keeper import SnapshotKeeper
from tests.catfish._support import boxes
from tests.catfish.test_cli import asked, catfish, start  # noqa: F401

EVERYTHING = (-np.inf, -np.inf, np.inf, np.inf)
PAGE = _snapshot.PAGE
Start = Callable[..., tuple[subprocess.Popen[str], list[str]]]


def contents(tree: RTree) -> list[int]:
    return sorted(tree.search(*EVERYTHING))


def churned(count: int = 3000) -> RTree:
    """A tree that has grown, shrunk and has free nodes."""
    rects = boxes(count)
    tree = RTree(capacity=2 * count)
    tree.insert_many(rects)
    for row in range(0, count, 3):
        assert tree.delete(*rects[row], row)
    for row in range(1, count // 2, 3):
        assert tree.update(rects[row], row, rects[row] + 0.5)
    return tree


@pytest.mark.parametrize(
    "make",
    [RTree, lambda: RTree.bulk(boxes(5000), capacity=9000), churned],
    ids=["empty", "bulk", "churn"],
)
def test_what_was_saved_comes_back(tmp_path: Path, make: Callable[[], RTree]) -> None:
    tree, path = make(), tmp_path / "tree.snapshot"
    saved = tree.save(path)
    assert (saved.entries, saved.size_bytes) == (len(tree), path.stat().st_size)
    again = RTree.open(path)
    again.check()
    assert again.stats() == tree.stats() and again.bounds == tree.bounds
    assert contents(again) == contents(tree)
    assert os.listdir(tmp_path) == ["tree.snapshot"]
    # It is a tree like any other: it grows, and is saved again.
    again.insert_many(boxes(500, seed=7), np.arange(500) + 10**6)
    again.check()
    again.save(path)
    assert len(RTree.open(path, capacity=50_000)) == len(tree) + 500
    assert (
        RTree.open(path, capacity=50_000).stats().capacity_nodes > tree.stats().capacity_nodes / 2
    )


def test_writers_may_run(tmp_path: Path) -> None:
    rects = boxes(4000)
    tree, path = RTree.bulk(rects, capacity=20_000), tmp_path / "tree.snapshot"
    stop = threading.Event()

    def write() -> None:
        """Moves and pairs: whatever the moment, there is an even number of entries."""
        turn = 0
        while not stop.is_set():
            turn += 1
            row = turn % len(rects)
            assert tree.update(rects[row], row, rects[row] + turn % 5)
            rects[row] += turn % 5

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            tree.save(path)
            again = RTree.open(path)
            again.check()
            assert contents(again) == list(range(4000))
    finally:
        stop.set()
        writer.join()


# ---- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["fsync", "rename"])
def test_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path = tmp_path / "tree.snapshot"
    RTree.bulk(boxes(10)).save(path)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, at, fail)
    with pytest.raises(OSError, match="No space"):
        RTree.bulk(boxes(20)).save(path)
    monkeypatch.undo()
    assert len(RTree.open(path)) == 10
    assert os.listdir(tmp_path) == ["tree.snapshot"]


def test_what_a_dead_process_left_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "tree.snapshot"
    (tmp_path / ".tree.snapshot.saving").write_bytes(b"x" * 10_000_000)
    RTree.bulk(boxes(10)).save(path)
    assert len(RTree.open(path)) == 10
    assert os.listdir(tmp_path) == ["tree.snapshot"]


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tree.snapshot"
    with (tmp_path / ".tree.snapshot.saving").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SnapshotError, match=r"another process is writing.*own file"):
            RTree().save(path)
    RTree().save(path)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "tree.snapshot"
    link.symlink_to(tmp_path / "real" / "tree.snapshot")
    RTree.bulk(boxes(10)).save(link)
    assert link.is_symlink() and len(RTree.open(link)) == 10


# ---- bad files -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "tree.snapshot"
    churned(600).save(path)
    return path.read_bytes()


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad.snapshot"
    path.write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        RTree.open(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def resealed(content: bytes) -> bytes:
    """The same file with right checksums: as somebody would make it who wants to harm."""
    fields = content[: _snapshot._FIELDS.size - 4] + struct.pack("<I", zlib.crc32(content[PAGE:]))
    return (fields + struct.pack("<I", zlib.crc32(fields))).ljust(PAGE, b"\0") + content[PAGE:]


def with_word(content: bytes, index: int, value: int) -> bytes:
    """Replace a number of the header (0: the version)."""
    return resealed(content[: 8 + 4 * index] + struct.pack("<I", value) + content[12 + 4 * index :])


def test_files_that_are_none(tmp_path: Path, good: bytes) -> None:
    assert "no snapshot" in refused(tmp_path, b"")
    assert "no snapshot" in refused(tmp_path, b"PK\3\4" + bytes(9000))
    assert "within its header, after 100 bytes" in refused(tmp_path, good[:100])
    assert "was cut off" in refused(tmp_path, good[:-1])
    assert "was cut off" in refused(tmp_path, good[:PAGE])
    assert "behind its end" in refused(tmp_path, good + b"\0")
    with pytest.raises(FileNotFoundError):
        RTree.open(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SnapshotError, match="no regular file"):
            RTree.open(path)


def test_files_of_others(tmp_path: Path, good: bytes) -> None:
    assert "layout is version 2" in refused(tmp_path, with_word(good, 0, 2))
    here, there = (sys.byteorder, {"little": "big", "big": "little"}[sys.byteorder])
    order = {"little": 1, "big": 2}[there]
    message = refused(tmp_path, with_word(good, 1, order))
    assert f"{there}-endian" in message and f"{here}-endian" in message
    assert re.search(
        "tree has format 77, .* load the data again", refused(tmp_path, with_word(good, 2, 77))
    )
    assert "node bytes 512" in refused(tmp_path, with_word(good, 3, 512))
    assert "contradict" in refused(tmp_path, with_word(good, 6, 0xFFFF_FFFF))
    assert "contradict" in refused(tmp_path, with_word(good, 7, 0))
    assert "contradict" in refused(tmp_path, with_word(good, 7, 0xFFFF_FFFF))


def test_every_kind_of_damage_is_found(tmp_path: Path, good: bytes) -> None:
    random = np.random.default_rng(5)
    places = [*range(8, 72), *random.integers(PAGE, len(good), 60).tolist()]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << int(random.integers(8))
        message = refused(tmp_path, bytes(bad))
        assert "damaged" in message or "version" in message or "checksum" in message


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_file_does_harm(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, good: bytes
) -> None:
    """With right checksums, too: either it is refused, or it is a sound tree."""
    words = bytearray(good)
    nodes = (len(good) - 2 * PAGE) // 1024
    for _ in range(data.draw(st.integers(1, 3))):
        node = data.draw(st.integers(-1, nodes - 1))  # -1: the arena's header
        at = PAGE + (data.draw(st.integers(0, 63)) * 4 if node < 0 else PAGE + 1024 * node)
        if node >= 0:
            at += 4 * data.draw(st.integers(0, 255))
        value = data.draw(
            st.sampled_from([0, 1, 2, 7, nodes, nodes - 1, 0xFFFF_FFFF, 0x7FC0_0000, 0x7FF8_0000])
            | st.integers(0, 0xFFFF_FFFF)
        )
        struct.pack_into("<I", words, at, value)
    path = tmp_path_factory.getbasetemp() / "harm.snapshot"
    path.write_bytes(resealed(bytes(words)))
    try:
        tree = RTree.open(path)
    except SnapshotError:
        return
    tree.check()
    found = tree.search(*EVERYTHING)
    assert len(found) == len(tree) == tree.count(*EVERYTHING)
    tree.nearest(0.5, 0.5, k=10)
    tree.insert_many(boxes(200, seed=3))
    tree.check()


# ---- served --------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_keeper_leaves_alone_what_is_up_to_date(tmp_path: Path) -> None:
    tree, path = RTree.bulk(boxes(100), capacity=1000), tmp_path / "tree.snapshot"
    keeper = SnapshotKeeper(tree, str(path))
    assert (await keeper.save()).written
    before = path.stat().st_ino
    assert not (await keeper.save()).written
    assert path.stat().st_ino == before
    tree.insert(0, 0, 1, 1, 7)
    assert (await keeper.save()).written and len(RTree.open(path)) == 101
    path.unlink()
    assert (await keeper.save()).written and path.exists()
    tmp_path.chmod(0o700)
    keeper.path = str(tmp_path / "no" / "such" / "folder")
    with pytest.raises(FileNotFoundError):
        await keeper.save()
    assert keeper.failures == 1


def test_a_server_goes_on_where_it_ended(start: Start, tmp_path: Path) -> None:  # noqa: F811
    path, socket = tmp_path / "tree.snapshot", f"l5+unix://{tmp_path}/tree.sock"
    np.save(tmp_path / "boxes.npy", boxes(400))
    process, [url] = start(socket, "--snapshot", str(path), "--every", "0")
    assert path.exists()
    asked("load", url, str(tmp_path / "boxes.npy"))
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert '"event": "saved"' in output and '"entries": 400' in output

    process, [url] = start(socket, "--snapshot", str(path), "--every", "0.05", "--load", "demo")
    assert asked("count", url, "--bbox", "-9,-9,9,9") == {"count": 400}
    asked("load", url, str(tmp_path / "boxes.npy"))
    while len(RTree.open(path)) != 800:
        pass
    process.kill()
    process.wait()
    assert len(RTree.open(path)) == 800


def test_a_bad_snapshot_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "tree.snapshot"
    path.write_bytes(b"something else")
    done = catfish("serve", f"l5+unix://{tmp_path}/t.sock", "--snapshot", str(path), status=1)
    assert "it is no snapshot of a tree" in done.stderr and done.stderr.count("\n") == 1
    assert path.read_bytes() == b"something else"
