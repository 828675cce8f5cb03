"""Memory cgroups of this machine, where they can be made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest


@attrs.frozen
class Version:
    """What v1 and v2 call the same things."""

    root: Path
    limit: str
    usage: str
    shmem: str


V1 = Version(
    Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_shmem"
)
V2 = Version(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "shmem")


@attrs.frozen
class Group:
    """A cgroup that a test made."""

    path: Path
    version: Version

    def limit(self, size_bytes: int) -> None:
        (self.path / self.version.limit).write_text(str(size_bytes))

    def limit_bytes(self) -> int:
        return int((self.path / self.version.limit).read_text())

    def usage_bytes(self) -> int:
        return int((self.path / self.version.usage).read_text())

    def shared_bytes(self) -> int:
        """Return the memory of memfds (and tmpfs) that is charged to this group."""
        pairs = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return next(int(value) for name, value in pairs if name == self.version.shmem)

    @contextmanager
    def child(self, name: str) -> Iterator[Group]:
        path = self.path / name
        path.mkdir()
        try:
            yield Group(path, self.version)
        finally:
            path.rmdir()  # which fails if the test left a process in it


@contextmanager
def group() -> Iterator[Group]:
    """Make a memory cgroup; skip, with the reason, where that cannot be done."""
    version = next((v for v in (V1, V2) if _usable(v)), None)
    if version is None:
        pytest.skip("a memory cgroup cannot be made: it is not mounted, or not writable")
    with Group(version.root, version).child(f"l5-test-{os.getpid()}") as made:
        if version is V2:
            (made.path / "cgroup.subtree_control").write_text("+memory")
        yield made


def _usable(version: Version) -> bool:
    probe = version.root / f"l5-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return os.access(probe / version.limit, os.W_OK)
    finally:
        probe.rmdir()
