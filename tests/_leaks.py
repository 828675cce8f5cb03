"""What a process holds open, and what a test added to it."""

import gc
import os
import re
import time
from pathlib import Path

PROC = Path("/proc/self")
SUPPORTED = (PROC / "fd").is_dir()
PATIENCE_S = 30.0  # a thread that ends, a child being reaped: a moment, but on a busy machine

# Opened once by a library and kept for the life of the process.
KEPT = re.compile(
    r"^fd \d+ -> /dev/u?random$|/proj\.db$|multiprocessing\.(resource_tracker|forkserver)"
)


def settle() -> None:
    """Let libuv open the pipe for signals that it keeps for the life of the process."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.new_event_loop().close()


def snapshot() -> frozenset[str]:
    """Describe the open descriptors, the mappings of memfds and the child processes."""
    return frozenset((*_descriptors(), *_memfd_mappings(), *_children()))


def left_behind(before: frozenset[str]) -> list[str]:
    """List what is there now and was not before, once it has had the time to go."""
    left = _added(before)
    if not left:
        return []
    gc.collect()
    deadline = time.monotonic() + PATIENCE_S
    while (left := _added(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _added(before: frozenset[str]) -> list[str]:
    return sorted(entry for entry in snapshot() - before if not KEPT.search(entry))


def _descriptors() -> list[str]:
    found: list[str] = []
    for name in os.listdir(PROC / "fd"):
        try:
            found.append(f"fd {name} -> {os.readlink(PROC / 'fd' / name)}")
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
    return found


def _memfd_mappings() -> list[str]:
    data = (PROC / "maps").read_bytes()
    if b"/memfd:" not in data:  # so it is twice for nearly every test
        return []
    return [f"mapping {line}" for line in data.decode().splitlines() if "/memfd:" in line]


def _children() -> list[str]:
    found: list[str] = []
    for task in (PROC / "task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread has ended, or the kernel does not keep this list
            continue
        found.extend(f"child process {pid}: {_command(pid)}" for pid in pids)
    return found


def _command(pid: str) -> str:
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "(gone)"
    return b" ".join(words).decode(errors="replace").strip() or "(not reaped)"
