"""How much memory the cgroup of this process still allows (v1 and v2), up the tree.

`fallocate` over the limit is no error but an OOM kill, so the client looks before it allocates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""v1 says "no limit" by a number of pages that nothing has."""


def memory_headroom(
    proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT
) -> int | None:
    """Return the bytes that may still be allocated, the least up the tree; None if unlimited."""
    rooms = list(_rooms(proc_cgroup, cgroup_root))
    return min(rooms, default=None)


def _rooms(proc_cgroup: Path, root: Path) -> Iterator[int]:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = Path(path.lstrip("/"))
        for parent in (relative, *relative.parents):
            if controllers == "":
                found = [_room_v2(root / parent), _room_v2(root / "unified" / parent)]
            elif "memory" in controllers.split(","):
                found = [_room_v1(root / "memory" / parent)]
            else:
                break
            yield from (room for room in found if room is not None)


def _room_v2(place: Path) -> int | None:
    return _room(place, "memory.max", "memory.current", "inactive_file")


def _room_v1(place: Path) -> int | None:
    return _room(place, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _room(place: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    try:
        text = (place / limit_name).read_text().strip()
        if text == "max" or int(text) >= _UNLIMITED:
            return None
        usage = int((place / usage_name).read_text())
        return max(0, int(text) - usage + _reclaimable(place, reclaimable_name))
    except (OSError, ValueError):
        return None


def _reclaimable(place: Path, name: str) -> int:
    try:
        for line in (place / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
