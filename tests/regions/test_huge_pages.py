"""Large regions are in huge pages where the kernel has some, and whole without."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import l5
from l5 import native

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason or "-")

HUGE = 2 << 20
SIZE = 2 * HUGE + 12_345
MAP_FIXED, COLLAPSE, THP_DISABLE = 16, 25, 41  # MADV_COLLAPSE, PR_SET_THP_DISABLE of Linux


def address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


def in_huge_pages(at: int) -> int:
    """Return how many bytes of the mapping at an address this process reaches by huge pages."""
    text = Path("/proc/self/smaps").read_text()
    [found] = re.findall(rf"^{at:x}-.*\n(?:\w+: .*\n)*?ShmemPmdMapped: *(\d+) kB", text, re.M)
    return int(found) << 10


def kernel_gives_them() -> bool:
    """Ask for as many as the test will, by the same call."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    fd = os.memfd_create("probe")
    try:
        os.posix_fallocate(fd, 0, 2 * HUGE)
        with mmap.mmap(-1, 3 * HUGE) as room:  # of which the part on a boundary becomes the file's
            begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
            begin += -begin % HUGE
            rights, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED
            assert libc.mmap(begin, 2 * HUGE, rights, how, fd, 0) == begin
            return libc.madvise(begin, 2 * HUGE, COLLAPSE) == 0
    finally:
        os.close(fd)


def touched(memory: memoryview) -> int:
    return sum(memory[:: mmap.PAGESIZE])


def test_a_large_region_is_in_huge_pages() -> None:
    if not kernel_gives_them():
        pytest.skip("the kernel gives shared memory no huge pages")
    with l5.Region.create(SIZE) as region, region.view as view:
        assert touched(view) == 0
        assert in_huge_pages(address(view)) == 2 * HUGE


@pytest.mark.anyio
async def test_both_ends_map_it_where_huge_pages_can_be(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    with l5.Region.create(SIZE) as region:
        async with l5.serve(bytes, url) as server:
            server.export("table", region)
            async with await l5.connect(url) as client:
                remote = await client.open_region("table")
                assert remote.mapping is not None
                with region.view as ours, remote.mapping as theirs:
                    assert address(ours) % HUGE == address(theirs) % HUGE == 0
                    region.write(SIZE - 5, b"there")
                    assert theirs[SIZE - 5 :] == b"there" and len(theirs) == SIZE
                    assert touched(ours) == touched(theirs) == 0
                    assert in_huge_pages(address(ours)) == in_huge_pages(address(theirs))


WITHOUT = f"""
import ctypes
from tests.regions import test_huge_pages as test
import l5
assert ctypes.CDLL(None).prctl({THP_DISABLE}, 1, 0, 0, 0) == 0
with l5.Region.create(test.SIZE) as region, region.view as view:
    assert test.touched(view) == 0
    print(test.in_huge_pages(test.address(view)))
    region.write(0, b"here")
    assert region.read(0, 4) == b"here"
"""


def test_where_there_are_none_it_is_whole() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
