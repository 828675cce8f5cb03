"""A share of a processor for a server.

The period is short, so that a server which has used up its share is back before its clients miss
its heartbeats.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import _quota
from benchmarks._quota import NoQuota

__all__ = ["NoQuota", "group"]

PERIOD_US = 10_000
ROOT = Path("/sys/fs/cgroup")


@contextmanager
def group(share: float, root: Path = ROOT) -> Generator[Path]:
    """Make a group that gets this share of one processor; give the file that takes processes.

    Raises `NoQuota`.  The processes have to end before the block does.
    """
    first = (root / "cpu").is_dir()
    home = (root / "cpu" if first else root) / f"l5-bench-{os.getpid()}"
    with _quota.group(home, share, PERIOD_US, first=first):
        yield home / "cgroup.procs"
