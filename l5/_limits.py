"""What this process has run out of: errors of the system in words that name the limit."""

from __future__ import annotations

import errno
import logging
import time
from pathlib import Path

try:  # not when it is needed: without descriptors nothing can be imported
    import resource
except ImportError:  # there is none on Windows
    resource = None

__all__ = ["Complaint", "explain", "lack"]

QUIET_S = 60.0
"""For how long a lack that has been told of is not told of again."""

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


class Complaint:
    """A warning of something that happens with every connection while it lasts: once a minute."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._quiet_until = 0.0
        self._unsaid = 0

    def say(self, text: str, *values: object) -> None:
        """Log a warning, or count it for the next one."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        self._quiet_until = now + QUIET_S
        unsaid, self._unsaid = self._unsaid, 0
        more = f" (and {unsaid} times since the last warning)" if unsaid else ""
        self._logger.warning(text + "%s", *values, more)


def _open_files_max() -> str:
    return "unknown" if resource is None else str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _map_count_max() -> str:
    try:
        return _MAP_COUNT_MAX.read_text().strip()
    except OSError:
        return "unknown"
