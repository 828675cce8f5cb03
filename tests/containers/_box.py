"""Run a command in a box: ``python -m tests.containers._box JSON COMMAND...``.

The JSON object may have: ``namespaces`` (names from `KINDS`), ``init`` (whether the first
process of a PID namespace only waits), ``share`` (a directory that is bound to /mnt in a mount
namespace, and hidden at its own place), ``deny`` (system call to errno, for seccomp), ``cgroup`` (a
directory whose ``cgroup.procs`` the process joins first).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import struct
import sys

KINDS = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
CALLS = {  # x86-64, and the table that newer architectures share
    "eventfd2": (290, 19),
    "fallocate": (285, 47),
    "madvise": (28, 233),
    "memfd_create": (319, 279),
    "pidfd_open": (434, 434),
    "rseq": (334, 293),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_MS_REC_PRIVATE, _MS_BIND = 0x4000 | 0x40000, 0x1000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER, _RET_ERRNO, _RET_ALLOW = 2, 0x00050000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unshare(flags: int) -> None:
    check(libc.unshare(ctypes.c_int(flags)))


def refused(kind: str) -> bool:
    """Tell whether this process may not make a namespace of this kind (tried in a child)."""
    child = os.fork()
    if child == 0:
        os._exit(1 if libc.unshare(KINDS[kind]) else 0)
    return os.waitpid(child, 0)[1] != 0


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, None))


def program(deny: dict[str, str]) -> bytes:
    """Return the seccomp filter: these calls fail with these errors, all others are allowed."""
    architecture, column = _ARCHITECTURES[platform.machine()]
    rules = [
        struct.pack("HBBI", _LOAD, 0, 0, 4),  # the architecture that the number belongs to
        struct.pack("HBBI", _JUMP_IF_EQUAL, 1, 0, architecture),
        struct.pack("HBBI", _RETURN, 0, 0, _RET_ALLOW),
        struct.pack("HBBI", _LOAD, 0, 0, 0),
    ]
    for call, error in deny.items():
        rules.append(struct.pack("HBBI", _JUMP_IF_EQUAL, 0, 1, CALLS[call][column]))
        rules.append(struct.pack("HBBI", _RETURN, 0, 0, _RET_ERRNO | getattr(errno, error)))
    rules.append(struct.pack("HBBI", _RETURN, 0, 0, _RET_ALLOW))
    return b"".join(rules)


def filter_calls(deny: dict[str, str]) -> None:
    rules = ctypes.create_string_buffer(program(deny))
    header = struct.pack("HxxxxxxP", (len(rules) - 1) // 8, ctypes.addressof(rules))
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0))


def enter(spec: dict) -> None:
    names = spec.get("namespaces", ())
    if spec.get("cgroup"):
        with open(os.path.join(spec["cgroup"], "cgroup.procs"), "w") as procs:
            procs.write("0")
    flags = 0
    for name in names:
        flags |= KINDS[name]
    unshare(flags)
    if "pid" in names:
        become_first()
        if spec.get("init"):
            become_first()  # now the second: the end of the first would be that of all
    if "mount" in names:
        mount("none", "/", "none", _MS_REC_PRIVATE)
        mount(spec["share"], "/mnt", "none", _MS_BIND)
        for hidden in (spec["share"], "/dev/shm"):
            mount("tmpfs", hidden, "tmpfs")
        if "pid" in names:
            mount("proc", "/proc", "proc")
    if spec.get("deny"):
        filter_calls(spec["deny"])


def become_first() -> None:
    """Only children are in a new PID namespace: the child goes on, this process waits for it."""
    child = os.fork()
    if child == 0:
        check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        return
    status = os.waitpid(child, 0)[1]
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    enter(json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
