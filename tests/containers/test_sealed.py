"""After the set-up nobody takes a page out of the shared memory, nor adds one, at either end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

import l5
from l5 import native
from l5.transports import shm

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
]

PAGE = mmap.PAGESIZE
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, COLLAPSE = 1, 2, 16, 8
MADV_REMOVE = 9
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def fallocate(fd: int, mode: int, size: int = PAGE) -> None:
    check(libc.fallocate(fd, mode, ctypes.c_int64(PAGE), ctypes.c_int64(size)))


def mapped() -> list[tuple[int, int]]:
    """Return where the memory of rings is mapped in this process: from, to."""
    lines = [x for x in Path("/proc/self/maps").read_text().splitlines() if "/memfd:l5" in x]
    return [(int(x.split("-")[0], 16), int(x.split("-")[1].split()[0], 16)) for x in lines]


def remove_pages() -> None:
    """Advise the kernel, through every mapping, that nobody needs its pages."""
    errors = []
    for begin, end in mapped():
        if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_REMOVE) < 0:
            errors.append(ctypes.get_errno())
    assert len(errors) == len(mapped()) > 0, "a page was taken out"
    raise OSError(errors[0], os.strerror(errors[0]))


ATTEMPTS: dict[str, Callable[[int], object]] = {
    "punch a hole": lambda fd: fallocate(fd, PUNCH_HOLE | KEEP_SIZE),
    "madvise REMOVE": lambda fd: remove_pages(),
    "shorten": lambda fd: os.ftruncate(fd, PAGE),
    "lengthen": lambda fd: os.ftruncate(fd, 1 << 22),
    "write": lambda fd: os.pwrite(fd, b"\1" * 64, PAGE),
    "map for writing": lambda fd: mmap.mmap(fd, PAGE, mmap.MAP_SHARED),
    "seal more": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    "zero": lambda fd: fallocate(fd, ZERO_RANGE | KEEP_SIZE),
    "collapse": lambda fd: fallocate(fd, COLLAPSE),
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[bool, int]]:
    """The descriptors that a hostile end keeps although l5 closes its own; by "is it a server"."""
    fds: dict[bool, int] = {}
    original = shm._Attempt._map

    def keep(self: shm._Attempt) -> object:
        fds[self._server] = os.dup(self._fd)
        return original(self)

    monkeypatch.setattr(shm._Attempt, "_map", keep)
    yield fds
    for fd in fds.values():
        os.close(fd)


@pytest.mark.parametrize("end", ["client", "server"])
async def test_nothing_can_be_taken_out(tmp_path: Path, kept: dict[bool, int], end: str) -> None:
    async def echo(payload: bytes) -> bytes:
        return payload

    async with l5.serve(echo, f"l5+shm://{tmp_path}/s") as server:
        async with await l5.connect(server.urls[0], ring=65536) as connection:
            assert await connection.request(b"before") == b"before"
            fd = kept[end == "server"]
            blocks = os.fstat(fd).st_blocks
            assert blocks * 512 == PAGE + 2 * 65536
            for name, attempt in ATTEMPTS.items():
                with pytest.raises(OSError) as caught:
                    attempt(fd)
                unsupported = name in ("zero", "collapse")  # memfds have no such thing at all
                expected = errno.EOPNOTSUPP if unsupported else errno.EPERM
                assert caught.value.errno == expected, name
            assert os.fstat(fd).st_blocks == blocks
            for _ in range(100):  # some laps of the ring: every page is used again
                assert await connection.request(bytes(4000)) == bytes(4000)
            with anyio.fail_after(60):
                assert await connection.request(b"after") == b"after"
