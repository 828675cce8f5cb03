"""What a client may have done to the memory that it offers."""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator

import pytest

from l5 import native

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)

RING_BYTES = 65536
PAGE = os.sysconf("SC_PAGE_SIZE")
FILE_BYTES = PAGE + 2 * RING_BYTES
FALLOC_FL_KEEP_SIZE = 1


def fallocate(fd: int, mode: int, offset: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, mode, offset, size) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


@pytest.fixture
def memfd() -> Iterator[int]:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, FILE_BYTES)
    os.pwrite(fd, struct.pack("<QQQ", 0x31474E49524C35, PAGE, RING_BYTES), 0)
    try:
        yield fd
    finally:
        os.close(fd)


def map_as_server(fd: int) -> None:
    native.Ring(fd, RING_BYTES, True, -1, 1024, 1024, True).close()


def test_blocks_behind_the_end_do_not_make_up_for_holes(memfd: int) -> None:
    # As many blocks as the rings need, but none of them in the rings: the server would pay.
    fallocate(memfd, FALLOC_FL_KEEP_SIZE, FILE_BYTES, FILE_BYTES)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(PermissionError, match="holes"):
        map_as_server(memfd)


def test_blocks_behind_the_end_of_a_whole_file_are_given_back(memfd: int) -> None:
    fallocate(memfd, 0, 0, FILE_BYTES)
    fallocate(memfd, FALLOC_FL_KEEP_SIZE, FILE_BYTES, FILE_BYTES)
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    map_as_server(memfd)
    assert os.fstat(memfd).st_blocks * 512 == FILE_BYTES
