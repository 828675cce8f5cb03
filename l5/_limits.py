"""What this process has run out of: errors of the system in words that name the limit."""

from __future__ import annotations

import errno
from pathlib import Path

__all__ = ["explain", "lack"]

_MAP_COUNT_MAX = Path("/proc/sys/vm/max_map_count")


def lack(error: OSError) -> str | None:
    """Say which limit an error is about; None if it is about something else."""
    if error.errno == errno.EMFILE:
        return f"this process's limit RLIMIT_NOFILE ({_open_files_max()}) is used up"
    return {
        errno.ENFILE: "the limit fs.file-max of this machine is used up",
        errno.ENOBUFS: "the kernel has no buffers left",
        errno.ENOMEM: "the kernel has no memory left, or this process no mappings "
        f"(vm.max_map_count, {_map_count_max()})",
        errno.ENOSPC: "the limit fs.epoll.max_user_watches of this user is used up",
    }.get(error.errno or 0)


def explain(error: OSError) -> str:
    """Say what an error of the system is about, with the limit if it is one."""
    return lack(error) or error.strerror or str(error) or type(error).__name__


def _open_files_max() -> str:
    try:
        import resource
    except ImportError:
        return "unknown"
    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _map_count_max() -> str:
    try:
        return _MAP_COUNT_MAX.read_text().strip()
    except OSError:
        return "unknown"
