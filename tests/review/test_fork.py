"""A forked child and what its parent had mapped at the moment of the fork."""

import ctypes
import os
import re
import tempfile
import threading
import time
from pathlib import Path

import anyio
import pytest

import l5
from l5 import native

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


async def feed(connection: l5.Connection) -> None:
    await connection.send(b"message")
    await anyio.sleep_forever()


def ring_addresses() -> range:
    """Where the rings of this process are mapped: from the first byte to the last."""
    lines = [x for x in Path("/proc/self/maps").read_text().splitlines() if "/memfd:l5" in x]
    bounds = [int(x, 16) for line in lines for x in re.split("[- ]", line)[:2]]
    return range(min(bounds), max(bounds))


def mappings_in(place: range) -> list[tuple[int, int]]:
    """What is mapped there, cut off where the place begins and ends."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [tuple(int(x, 16) for x in re.split("[- ]", line)[:2]) for line in lines]
    cut = [(max(begin, place.start), min(end, place.stop)) for begin, end in found]
    return [(begin, end) for begin, end in cut if begin < end]


def child_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_views_of_a_lease_outlive_a_fork() -> None:
    with tempfile.TemporaryDirectory() as path:
        url = f"l5+shm://{Path(path) / 's'}"
        async with l5.serve(feed, url, per="connection"), await l5.connect(url) as connection:
            async with connection.lease() as message:
                view = message.view
                child = os.fork()
                if not child:
                    os._exit(0 if bytes(view) == bytes(7) else 1)
                assert child_status(child) == 0
                assert bytes(view) == b"message"
                view.release()


def test_a_child_does_not_unmap_what_took_the_place_of_a_ring() -> None:
    fd = native.lib.l5_segment_create(65536)
    ring = native.Ring(fd, 65536, False, -1, 1024, 1024, False)
    os.close(fd)
    place = ring_addresses()
    child = os.fork()
    if not child:
        # The hooks of l5 have not seen this ring: they run here.
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        fixed_noreplace, private, anonymous = 0x100000, 0x2, 0x20
        flags = fixed_noreplace | private | anonymous
        at = libc.mmap(place.start, len(place), 3, flags, -1, 0)
        there = mappings_in(place)  # a sanitizer may have been faster: its mapping will do as well
        if not there:
            os._exit(2)
        ring.forget()
        ring.close()
        if mappings_in(place) != there:
            os._exit(3)
        if at == place.start:
            ctypes.memset(at, 1, len(place))
        os._exit(0)
    assert child_status(child) == 0
    ring.close()


async def test_fork_from_a_thread_while_the_loop_spins() -> None:
    with tempfile.TemporaryDirectory() as path:
        url = f"l5+shm://{Path(path) / 's'}?spin_us=10000"
        both: list[l5.Connection] = []

        async def handle(served: l5.Connection) -> None:
            both.append(served)
            await feed(served)

        async with l5.serve(handle, url, per="connection"), await l5.connect(url) as connection:
            both.append(connection)
            statuses: list[int] = []

            def fork_often() -> None:
                for _ in range(20):
                    time.sleep(0.003)
                    child = os.fork()
                    if not child:
                        os._exit(any(end._session.state != "CLOSED" for end in both))
                    statuses.append(child_status(child))

            thread = threading.Thread(target=fork_often)
            thread.start()
            await connection.receive()
            while thread.is_alive():
                with anyio.move_on_after(0.002):
                    await connection.receive()
            thread.join()
            assert statuses == [0] * 20
