"""Another process: ``python -m tests.regions._actor ROLE URL``; says what it found, as JSON.

``own``: a server that exports a table and waits.  ``attack``: a client that keeps the descriptors
of a region and tries everything that the system has.  ``fork``: what a forked child finds of a
region that its parent opened.  ``revoke``: a server that revokes when it is asked to, and then
writes a secret into the memory.  ``count`` and ``ascend``: see there.
"""

import ctypes
import fcntl
import json
import mmap
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel

import l5
from tests._patience import be_patient

KEEP_SIZE, PUNCH_HOLE = 1, 2
F_SEAL_FUTURE_WRITE = 0x10
MADV_REMOVE, PROT_BOTH = 9, mmap.PROT_READ | mmap.PROT_WRITE
COUNTS = 1000
SECRET = b"secret!\0" * (1 << 15)
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def outcome(attempt: Callable[[], object]) -> str:
    try:
        result = attempt()
    except (OSError, ValueError, PermissionError) as error:
        return type(error).__name__
    return "failed" if isinstance(result, int) and result < 0 else "done"


def mapping_of(fd: int, size: int) -> int:
    """Where that many bytes of this file are mapped; rings of the same size are others."""
    inode = os.fstat(fd).st_ino
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end, found = re.match(r"(\w+)-(\w+) \S+ \w+ \S+ (\d+)", line).groups()  # type: ignore
            if int(found) == inode and int(end, 16) - int(begin, 16) == size:
                return int(begin, 16)
    raise LookupError(size)


async def own(url: str) -> None:
    with l5.Region.create(1 << 20, write=True, atomic=True) as region:
        region.write(0, b"table")
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            say("ready")
            await anyio.sleep_forever()


async def revoke(url: str) -> None:
    async with anyio.create_task_group() as group:
        rounds = 0

        async def revoke_soon(name: str) -> None:
            await anyio.sleep(0.001)
            server.revoke(name)
            region.write(0, SECRET)

        async def handle(request: bytes) -> bytes:
            nonlocal rounds
            if request == b"export":
                rounds += 1
                region.write(0, bytes(len(SECRET)))
                server.export(f"table {rounds}", region)
                return f"table {rounds}".encode()
            group.start_soon(revoke_soon, request.decode())
            return request

        with l5.Region.create(len(SECRET)) as region:
            async with l5.serve(handle, url) as server:
                say("ready")
                await anyio.sleep_forever()


async def count(url: str) -> None:
    """Add to two words of a table, in both ways, and say that it is done."""
    async with await l5.connect(url) as connection:
        region = await connection.open_region("table")
        assert region.one_sided
        say("ready")
        while int.from_bytes(await region.read(16, 8), "little") == 0:
            await anyio.lowlevel.checkpoint()
        for _ in range(COUNTS):
            await region.fetch_and_add(0, 1)
            while True:
                old = int.from_bytes(await region.read(8, 8), "little")
                if await region.compare_and_swap(8, old, old + 1) == old:
                    break
        await region.write(24, (1).to_bytes(8, "little"))
        await anyio.sleep_forever()


async def ascend(url: str) -> None:
    """Write ever larger numbers at the end of the first KiB, and then at its beginning."""
    with l5.Region.create(4096) as region:
        async with l5.serve(lambda request: request, url) as server:
            server.export("table", region)
            say("ready")
            number = 0
            while True:
                for _ in range(2000):
                    number += 1
                    region.write(1016, number.to_bytes(8, "little"))
                    region.write(0, number.to_bytes(8, "little"))
                await anyio.sleep(0.0001)


def attempts(fd: int, size: int) -> dict[str, str]:
    """What a process that holds the file of a region can do with it."""
    address = mapping_of(fd, size)
    page = mmap.PAGESIZE

    def mapped_writable() -> None:
        with mmap.mmap(fd, size, prot=PROT_BOTH) as writable:
            writable[0:5] = b"wrong"

    return {
        "a writable mapping": outcome(mapped_writable),
        "write": outcome(lambda: os.pwrite(fd, b"wrong", 0)),
        "shrinking": outcome(lambda: os.ftruncate(fd, page // 2)),
        "growing": outcome(lambda: os.ftruncate(fd, size + page)),
        "a hole": outcome(lambda: libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, page)),
        "more blocks": outcome(lambda: libc.fallocate(fd, KEEP_SIZE, size, page)),
        "mprotect": outcome(lambda: libc.mprotect(address, size, PROT_BOTH)),
        "MADV_REMOVE": outcome(lambda: libc.madvise(address, page, MADV_REMOVE)),
        "another seal": outcome(lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)),
    }


async def attack(url: str) -> None:
    """Keep the descriptors that came with the region, as no sound client does."""
    from l5.transports import _memory_socket

    kept: list[int] = []
    original = _memory_socket.map_alien

    def keep(fd: int, size_bytes: int, *, writable: bool) -> Any:
        kept.append(os.dup(fd))
        return original(fd, size_bytes, writable=writable)

    _memory_socket.map_alien = keep
    async with await l5.connect(url) as connection:
        region = await connection.open_region("table")
        assert region.one_sided
        control, table = kept
        say({"table": attempts(table, region.size_bytes), "control": attempts(control, 4096)})
        await anyio.sleep_forever()


async def fork(url: str) -> None:
    async with await l5.connect(url) as connection:
        region = await connection.open_region("table")
        view = region.mapping
        assert await region.read(0, 5) == b"table"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, json.dumps(what_a_child_finds(region, view)).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as pipe:
            found = json.load(pipe)
        os.waitpid(child, 0)
        say({"child": found, "parent": (await region.read(0, 5)).decode()})


def what_a_child_finds(region: Any, view: memoryview | None) -> dict[str, Any]:
    found: dict[str, Any] = {"closed": region.closed}
    for name, operation in {
        "read": lambda: region.read(0, 5).send(None),
        "read_now": lambda: region.read_now(0, 5),
        "mapping": lambda: region.mapping,
        "write": lambda: region.write(0, b"x").send(None),
    }.items():
        try:
            operation()
            found[name] = ["no error", ""]
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]
    found["view"] = None if view is None else bytes(view[:5]).hex()
    with open("/proc/self/maps") as maps:
        found["mapped"] = "/memfd:l5" in maps.read()
    return found


if __name__ == "__main__":
    be_patient()
    roles = {"own": own, "attack": attack, "fork": fork, "revoke": revoke}
    roles |= {"count": count, "ascend": ascend}
    anyio.run(roles[sys.argv[1]], sys.argv[2])
