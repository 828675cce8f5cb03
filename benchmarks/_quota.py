"""A control group with a quota of processor time, by the kernel's cpu controller, v1 or v2."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LEAST_US = 1000
"""The kernel gives no less in a period."""


class NoQuota(Exception):
    """This machine lets us set no quota, for the reason that it tells."""


@contextmanager
def group(home: Path, processors: float, period_us: int, *, first: bool) -> Generator[Path]:
    """Make the group `home` that gets so many processors; `first`: of the controller's version 1.

    Raises `NoQuota`.  The processes in it have to end before the block does.
    """
    quota_us = round(processors * period_us)
    if quota_us < LEAST_US:
        raise NoQuota(f"{processors} of {period_us} us: the kernel gives {LEAST_US} us or more")
    try:
        home.mkdir()
    except OSError as error:
        raise NoQuota(f"cgroup {home.parent} is not writable: {error.strerror}") from error
    try:
        try:
            if first:
                (home / "cpu.cfs_period_us").write_text(str(period_us))
                (home / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (home / "cpu.max").write_text(f"{quota_us} {period_us}")
        except OSError as error:
            raise NoQuota(f"{error.filename} takes no quota: {error.strerror}") from error
        yield home
    finally:
        home.rmdir()
