"""A share of a processor for a server: a group of the kernel's cpu controller, v1 or v2.

The period is short, so that a server which has used up its share is back before its clients miss
its heartbeats.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 10_000
ROOT = Path("/sys/fs/cgroup")


class NoQuota(Exception):
    """There is no cpu controller that we may use; the text says what was tried."""


@contextmanager
def group(share: float, root: Path = ROOT) -> Generator[Path]:
    """Make a group that gets this share of one processor; give the file that takes processes.

    Raises `NoQuota`.  The processes have to end before the block does.
    """
    quota_us = round(share * PERIOD_US)
    if quota_us < 1000:
        raise NoQuota(f"{share} of {PERIOD_US} us: the kernel gives 1000 us or more")
    first = root / "cpu"
    home = (first if first.is_dir() else root) / f"l5-bench-{os.getpid()}"
    try:
        home.mkdir()
    except OSError as error:
        raise NoQuota(f"{home}: {error.strerror}") from error
    try:
        try:
            if first.is_dir():
                (home / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (home / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (home / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        except OSError as error:
            raise NoQuota(f"{error.filename}: {error.strerror}") from error
        yield home / "cgroup.procs"
    finally:
        home.rmdir()
