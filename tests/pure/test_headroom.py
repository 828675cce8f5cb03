"""How much a memory cgroup allows, read from a folder that looks like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from l5.shm._headroom import memory_headroom

MIB = 1 << 20
NO_LIMIT_V1 = 9223372036854771712


def v1(place: Path, limit: int, usage: int, inactive: int = 0) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (place / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (place / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {inactive}\n")


def v2(place: Path, limit: int | str, usage: int, inactive: int = 0) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.max").write_text(f"{limit}\n")
    (place / "memory.current").write_text(f"{usage}\n")
    (place / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc_cgroup"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def test_v2_the_least_up_the_tree(proc: Path, root: Path) -> None:
    proc.write_text("0::/pod/box\n")
    v2(root / "pod" / "box", "max", 10 * MIB)
    assert memory_headroom(proc, root) is None
    v2(root / "pod", 100 * MIB, 60 * MIB)
    assert memory_headroom(proc, root) == 40 * MIB
    v2(root / "pod" / "box", 50 * MIB, 20 * MIB)
    assert memory_headroom(proc, root) == 30 * MIB
    v2(root, 70 * MIB, 65 * MIB)
    assert memory_headroom(proc, root) == 5 * MIB


def test_v1_the_least_up_the_tree(proc: Path, root: Path) -> None:
    proc.write_text("5:devices:/x\n4:memory:/pod/box\n0::/\n")
    memory = root / "memory"
    v1(memory, NO_LIMIT_V1, 900 * MIB)
    v1(memory / "pod" / "box", NO_LIMIT_V1, 10 * MIB)
    assert memory_headroom(proc, root) is None
    v1(memory / "pod", 100 * MIB, 60 * MIB)
    assert memory_headroom(proc, root) == 40 * MIB
    v1(memory / "pod" / "box", 20 * MIB, 15 * MIB)
    assert memory_headroom(proc, root) == 5 * MIB


def test_v1_beside_other_controllers(proc: Path, root: Path) -> None:
    proc.write_text("4:cpu,memory:/box\n")
    v1(root / "memory" / "box", 20 * MIB, 15 * MIB)
    assert memory_headroom(proc, root) == 5 * MIB


def test_files_that_the_kernel_would_drop_count_as_room(proc: Path, root: Path) -> None:
    proc.write_text("4:memory:/box\n0::/box\n")
    v2(root / "box", 100 * MIB, 90 * MIB, inactive=30 * MIB)
    assert memory_headroom(proc, root) == 40 * MIB
    v1(root / "memory" / "box", 100 * MIB, 90 * MIB, inactive=20 * MIB)
    assert memory_headroom(proc, root) == 30 * MIB


def test_over_the_limit_is_no_room(proc: Path, root: Path) -> None:
    proc.write_text("0::/box\n")
    v2(root / "box", 10 * MIB, 11 * MIB)
    assert memory_headroom(proc, root) == 0


def test_a_container_that_sees_its_own_group_as_the_root(proc: Path, root: Path) -> None:
    """The path is the host's, or leads out of what is mounted; the limit stands at the root."""
    v2(root, 100 * MIB, 60 * MIB)
    for path in ("/", "/docker-1234.scope", "/../other"):
        proc.write_text(f"0::{path}\n")
        assert memory_headroom(proc, root) == 40 * MIB
    v1(root / "memory", 100 * MIB, 90 * MIB)
    proc.write_text("4:memory:/docker/1234\n")
    assert memory_headroom(proc, root) == 10 * MIB


def test_v2_mounted_beside_v1(proc: Path, root: Path) -> None:
    proc.write_text("4:cpu:/\n0::/box\n")
    v2(root / "unified" / "box", 100 * MIB, 60 * MIB)
    assert memory_headroom(proc, root) == 40 * MIB


@pytest.mark.parametrize("text", ["", "what\n", "0::\n", ":::\n", "4:memory:\n"])
def test_what_cannot_be_read_is_no_limit(proc: Path, root: Path, text: str) -> None:
    assert memory_headroom(proc, root) is None
    proc.write_text(text)
    assert memory_headroom(proc, root) is None
    (root / "memory.max").write_text("many\n")
    assert memory_headroom(proc, root) is None
    v2(root, 10, 5)
    (root / "memory.current").unlink()
    assert memory_headroom(proc, root) is None
