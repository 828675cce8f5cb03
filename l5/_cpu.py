"""How many processors this process may use, and whether it pays to spin with them."""

from __future__ import annotations

import os
from pathlib import Path

_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
QUOTA_MIN = 0.5
"""Processors.  With less, what a spin in vain costs is missed too much."""


def allowed_cpus() -> int:
    """Return the number of CPUs in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        try:
            return len(os.sched_getaffinity(0))
        except OSError:
            pass  # a seccomp filter may refuse it
    return os.cpu_count() or 1


def cpu_quota(proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT) -> float | None:
    """Return the CPU quota in processors, the smallest up the tree (v1 and v2); None if none."""
    found = smallest_quota(proc_cgroup, cgroup_root)
    return None if found is None else found[0]


def smallest_quota(
    proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT
) -> tuple[float, Path] | None:
    """Return the CPU quota in processors, and the folder of the group that it is given to."""
    quotas = [
        found
        for controllers, path in _memberships(proc_cgroup)
        for found in _quotas_up(controllers, path, cgroup_root)
    ]
    return min(quotas, default=None)


def may_spin() -> bool:
    """Tell whether polling for an answer can help: it needs a second processor and time.

    How many of the machine's this process itself may use does not matter: a peer on another one is
    polled for, and to one on the same the wait loop yields.  A quota is no reason to sleep: to be
    woken costs more of it than an answer that is polled for.
    """
    quota = cpu_quota()
    return (os.cpu_count() or 1) > 1 and (quota is None or quota >= QUOTA_MIN)


def _memberships(proc_cgroup: Path) -> list[tuple[str, str]]:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _quotas_up(controllers: str, path: str, root: Path) -> list[tuple[float, Path]]:
    if controllers == "":
        base, read = root, _quota_v2
    elif "cpu" in controllers.split(","):
        base, read = root / "cpu", _quota_v1
        if not base.exists():
            base = root / controllers
    else:
        return []
    relative = Path(path.lstrip("/"))
    places = [base / parent for parent in (relative, *relative.parents)]
    return [(quota, place) for place in places if (quota := read(place)) is not None]


def _quota_v2(place: Path) -> float | None:
    try:
        quota, period = (place / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(place: Path) -> float | None:
    try:
        quota = int((place / "cpu.cfs_quota_us").read_text())
        period = int((place / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
