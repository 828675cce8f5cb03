"""Memory that a hostile client offers, and what it tries with memory that was taken."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.attacks._wire import (
    HEADER,
    PAGE,
    REJECT,
    REQUEST,
    RING,
    SEALS,
    UPGRADE,
    UPGRADED,
    Hostile,
    as_client,
    begin_client,
    file_bytes,
    hello_bytes,
    make_memory,
    offer_memory,
    read_hello,
)

F_SEAL_FUTURE_WRITE = 0x10
KEEP_SIZE, PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.mmap.restype = ctypes.c_void_p


def punch(fd: int, offset: int = PAGE, size: int = RING) -> None:
    if _libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, size) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def sealed(fd: int, seals: int) -> int:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def bare(size: int, seals: int = SEALS, flags: int = 0) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, size)
    return sealed(fd, seals)


def punched() -> int:
    fd = make_memory()
    punch(fd, PAGE + RING, PAGE)
    return fd


def reopened(flags: int) -> int:
    fd = make_memory()
    try:
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    finally:
        os.close(fd)


def file_in(folder: str | None) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, file_bytes())
        return os.dup(file.fileno())


def pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def huge_pages() -> int:
    return bare(1 << 21, flags=os.MFD_HUGETLB)


MADE: dict[str, Callable[[], int]] = {
    "sound": make_memory,
    "unsealed": lambda: make_memory(seals=0),
    "sealed against growing only": lambda: make_memory(seals=fcntl.F_SEAL_GROW),
    "sealed against shrinking only": lambda: make_memory(seals=fcntl.F_SEAL_SHRINK),
    "sealed against writing": lambda: make_memory(seals=SEALS | fcntl.F_SEAL_WRITE),
    "sealed against later writing": lambda: make_memory(seals=SEALS | F_SEAL_FUTURE_WRITE),
    "sealed against sealing": lambda: make_memory(seals=SEALS | fcntl.F_SEAL_SEAL),
    "a page short": lambda: bare(file_bytes() - PAGE),
    "a page long": lambda: bare(file_bytes() + PAGE),
    "one TiB": lambda: bare(1 << 40),
    "never allocated": lambda: bare(file_bytes()),
    "one page punched out": punched,
    "without our mark": lambda: make_memory(magic=0),
    "read-only": lambda: reopened(os.O_RDONLY),
    "write-only": lambda: reopened(os.O_WRONLY),
    "only a path": lambda: reopened(os.O_PATH),
    "a file on disk": lambda: file_in(None),
    "a file in /dev/shm": lambda: file_in("/dev/shm"),
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a pipe": pipe,
    "an eventfd": lambda: os.eventfd(1),
    "a socket": lambda: socket.socket(socket.AF_UNIX).detach(),
    "huge pages": huge_pages,
}

PARAMETERS: dict[str, dict[str, Any]] = {
    "no size": {},
    "a size in words": {"ring_bytes": "65536"},
    "a true size": {"ring_bytes": True},
    "a size of zero": {"ring_bytes": 0},
    "a negative size": {"ring_bytes": -65536},
    "a size of 128 KiB": {"ring_bytes": 2 * RING},
    "a size of 1 TiB": {"ring_bytes": 1 << 40},
    "a size that is no power of two": {"ring_bytes": RING + PAGE},
}


def ask_on_socket(sock: socket.socket) -> bool:
    """The upgrade was declined: is the connection sound on its socket?"""
    sock.sendall(HEADER.pack(6, REQUEST, 0, 0, 1) + b"e here")
    answer = b""
    while len(answer) < 22:
        more = sock.recv(22 - len(answer))
        if not more:
            return False
        answer += more
    return answer[16:] == b"e here"


def outcome(sock: socket.socket, number: int, answer: dict[str, Any]) -> dict[str, Any]:
    if number == REJECT:
        return {"rejected": answer["message"]}
    assert number == UPGRADED
    if answer["ok"]:
        return {"ok": True}
    return {"declined": answer["reason"], "sound": ask_on_socket(sock)}


def offer(path: str, case: str) -> dict[str, Any]:
    """Offer this memory, or these parameters, or this many descriptors."""
    if case in TAKEN:
        return TAKEN[case](path)
    sock, _ = begin_client(path)
    fds: list[int] = []
    try:
        if case in PARAMETERS:
            fds = [make_memory()]
            return outcome(sock, *offer_memory(sock, fds, PARAMETERS[case]))
        if case.endswith(" descriptors"):
            fds = [make_memory() for _ in range(min(2, int(case.split()[0])))]
            fds += [os.dup(fds[0]) for _ in range(int(case.split()[0]) - 2)]
            return outcome(sock, *send_many(sock, fds))
        fds = [MADE[case]()]
        return outcome(sock, *offer_memory(sock, fds))
    finally:
        for fd in fds:
            os.close(fd)
        sock.close()


def send_many(sock: socket.socket, fds: list[int]) -> tuple[int, dict[str, Any]]:
    """Send an upgrade with all these descriptors, at most 250 beside each of its bytes."""
    upgrade = hello_bytes(UPGRADE, {"transport": "shm", "params": {"ring_bytes": RING}})
    with suppress(BrokenPipeError, ConnectionResetError):
        for i in range(0, len(fds), 250):
            socket.send_fds(sock, [upgrade[:1]], fds[i : i + 250])
            upgrade = upgrade[1:]
        sock.sendall(upgrade)
    return read_hello(sock)[:2]


# ---- memory that was taken -----------------------------------------------------------------------


def attempt(what: Callable[[], object]) -> str:
    try:
        what()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "done"


def remove(peer: Hostile) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(peer.memory))
    if _libc.madvise(address + PAGE, RING, mmap.MADV_REMOVE) < 0:
        raise OSError(ctypes.get_errno(), "madvise")


def map_again(fd: int) -> None:
    mmap.mmap(fd, file_bytes()).close()


def tamper(fd: int) -> dict[str, str]:
    """Try all that would pull the memory from under the victim."""
    return {
        "shrink": attempt(lambda: os.ftruncate(fd, PAGE)),
        "grow": attempt(lambda: os.ftruncate(fd, file_bytes() * 2)),
        "punch": attempt(lambda: punch(fd)),
        "allocate behind the end": attempt(
            lambda: os.posix_fallocate(fd, file_bytes(), file_bytes())
        ),
        "write": attempt(lambda: os.pwrite(fd, b"x", PAGE)),
        "map again": attempt(lambda: map_again(fd)),
        "seal against writing": attempt(lambda: sealed(fd, fcntl.F_SEAL_WRITE)),
    }


def tamper_after(path: str) -> dict[str, Any]:
    peer = as_client(path)
    found = tamper(peer.fd) | {"remove": attempt(lambda: remove(peer))}
    sound = peer.echo(b"e sound")
    peer.close()
    return {"found": found, "sound": sound}


def punch_meanwhile(path: str) -> dict[str, Any]:
    """Punch holes as fast as can be while the victim takes the memory; what got through?"""
    whole = declined = 0
    for _ in range(20):
        sock, _ = begin_client(path)
        fd = make_memory()
        stop = threading.Event()

        def tear(fd: int = fd, stop: threading.Event = stop) -> None:
            with suppress(OSError):
                while not stop.is_set():
                    punch(fd, PAGE + RING, RING)
                    os.posix_fallocate(fd, 0, file_bytes())

        thread = threading.Thread(target=tear)
        thread.start()
        try:
            _, answer = offer_memory(sock, [fd])
        finally:
            stop.set()
            thread.join()
        if answer["ok"]:
            whole += os.fstat(fd).st_blocks * 512 == file_bytes()
            assert attempt(lambda fd=fd: punch(fd)) != "done"
        else:
            declined += "holes" in answer["reason"]
        os.close(fd)
        sock.close()
    return {"whole": whole, "declined": declined}


TAKEN: dict[str, Callable[[str], dict[str, Any]]] = {
    "tampered with afterwards": tamper_after,
    "punched meanwhile": punch_meanwhile,
}
