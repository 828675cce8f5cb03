"""Trees in files: an image of the arena behind a header, checked in every byte when it is read.

    0       8         12           16       20                       68      72      4096
    +-------+---------+------------+--------+- - - - - - - - - - - - +-------+- - - -+- - - - -
    | magic | version | byte order | format | sizes, counts, time,   | CRC   | zeros | the image
    |       |         |            | of the | CRC-32 of the image    | of it |       |
    |       |         |            | arena  |                        |       |       |
    +-------+---------+------------+--------+- - - - - - - - - - - - +-------+- - - -+- - - - -

The image is that of `native/rt_image.c`: the arena's first page and all nodes that were ever
taken, in the byte order of the machine that wrote it. It is read straight to where the nodes
belong, which is why two million rectangles are there in a fraction of a second. CRC-32 as zlib has
it runs at a gigabyte a second and finds what disks do; that nobody can harm the process with a file
made for it is the work of `rt_image_adopt`, which looks at every node.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import time
import zlib
from types import TracebackType
from typing import Any, Self

import attrs
import numpy as np

from catfish_app._kernels import ffi, lib

__all__ = ["Reader", "Saved", "SnapshotError", "save"]

MAGIC = b"CATFISH\x1a"
VERSION = 1
PAGE = 4096
PIECE_BYTES = 8 << 20
ROOM_FACTOR = 16
"""How much more memory than the file's size its header alone may ask for."""
ROOM_BYTES = 256 << 20
"""What it may ask for in any case: twice the room of a million rectangles."""
_BYTE_ORDERS = {1: "little", 2: "big"}
_FIELDS = struct.Struct("<8s8I3QI")
"""Magic; version, byte order, format, node bytes, leaf and inner entries, nodes, capacity in nodes;
entries, image bytes, when (ns since 1970); CRC of the image. Behind it the CRC of all that."""
_CRC = struct.Struct("<I")


class SnapshotError(Exception):
    """A file is no snapshot that can be used here, or cannot be written now; says why."""


@attrs.frozen
class Saved:
    """What was written."""

    entries: int
    size_bytes: int
    crc32: int
    """Of the image: the same number means that nothing has changed."""
    written: bool = True
    """False: the file was up to date."""


@attrs.frozen
class _Header:
    version: int
    byte_order: int
    format: int
    node_bytes: int
    leaf_max: int
    inner_max: int
    nodes: int
    capacity_nodes: int
    entries: int
    image_bytes: int
    saved_ns: int
    crc32: int

    def pack(self) -> bytes:
        fields = _FIELDS.pack(MAGIC, *attrs.astuple(self))
        return (fields + _CRC.pack(zlib.crc32(fields))).ljust(PAGE, b"\0")


def _ours() -> dict[str, int]:
    """Return what must be the same in a file for its image to be usable here."""
    return {
        "format": lib.rt_image_format(),
        "node_bytes": lib.RT_NODE_BYTES,
        "leaf_max": lib.RT_LEAF_MAX,
        "inner_max": lib.RT_INNER_MAX,
    }


# ---- writing -------------------------------------------------------------------------------------


def save(handle: Any, path: str | os.PathLike[str], *, unless_crc32: int | None = None) -> Saved:
    """Write a tree to a file, whole or not at all; nothing if the image's CRC is `unless_crc32`."""
    target = os.path.realpath(path)
    image, counts = _copy(handle)
    crc32 = zlib.crc32(image)
    saved = Saved(counts.entries, PAGE + len(image), crc32, written=crc32 != unless_crc32)
    if not saved.written:
        return saved
    header = _Header(
        version=VERSION,
        byte_order=1 if sys.byteorder == "little" else 2,
        nodes=(len(image) - lib.RT_HEADER_BYTES) // lib.RT_NODE_BYTES,
        capacity_nodes=counts.capacity_nodes,
        entries=counts.entries,
        image_bytes=len(image),
        saved_ns=time.time_ns(),
        crc32=crc32,
        **_ours(),
    )
    _replace(target, header.pack(), image)
    return saved


def _copy(handle: Any) -> tuple[memoryview, Any]:
    """Return an image of one moment, and the counts of that image."""
    used = ffi.new("size_t *")
    room = lib.rt_image_bytes(handle)
    while True:
        memory = np.empty(room, np.uint8)
        error = lib.rt_image_copy(handle, ffi.cast("void *", memory.ctypes.data), room, used)
        if error != -errno.ENOBUFS:
            break
        room = used[0] + used[0] // 16  # it grew meanwhile
    counts = ffi.new("struct rt_image_counts *")
    lib.rt_image_count(ffi.cast("void *", memory.ctypes.data), counts)
    return memory.data[: used[0]], counts


def _replace(target: str, header: bytes, image: memoryview) -> None:
    """Write a new file beside the old one, and rename it once all of it is on the disk."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.saving")
    descriptor = _open_alone(temporary, target)
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            _write_all(file, memoryview(header))
            _write_all(file, image)
        os.fsync(descriptor)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)  # and with it the lock
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _open_alone(temporary: str, target: str) -> int:
    """Open the file to write into, alone; a dead process may have left it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        descriptor = os.open(temporary, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(temporary, descriptor):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise SnapshotError(
                f"{target}: another process is writing this snapshot; give each server its own file"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another process renamed it before we had the lock


def _is(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_all(file: Any, content: memoryview) -> None:
    position = 0
    while position < len(content):
        position += file.write(content[position : position + PIECE_BYTES])


# ---- reading -------------------------------------------------------------------------------------


class Reader:
    """An open snapshot whose header makes sense."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = os.fspath(path)
        # Not blocking: whoever names a pipe shall not wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._refused("it is no regular file")
            self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115
        except BaseException:
            os.close(descriptor)
            raise
        try:
            self._header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def capacity(self) -> int:
        """How many rectangles always fit into a tree that has the room of the one saved."""
        low, high = 1, self._header.capacity_nodes * lib.RT_LEAF_MAX
        while low < high:  # the least number for which so many nodes are needed
            middle = (low + high) // 2
            if lib.rt_nodes_for(middle) < self._header.capacity_nodes:
                low = middle + 1
            else:
                high = middle
        return low

    def room(self, capacity: int | None) -> int:
        """Return for how many rectangles a tree is to be made: this one's room, or more.

        The file may come from anywhere: `SnapshotError` when nobody but its header wants memory out
        of proportion to its size.
        """
        nodes, wanted = self._header.capacity_nodes, self.capacity
        wanted_bytes = lib.rt_arena_bytes(nodes)
        allowed_bytes = max(ROOM_BYTES, ROOM_FACTOR * self._header.image_bytes)
        if wanted_bytes > allowed_bytes and nodes > lib.rt_nodes_for(capacity or 1):
            raise self._refused(
                f"its header asks for room for {wanted:,} rectangles ({wanted_bytes:,} bytes), and "
                f"it holds {self._header.entries:,}: if that is meant, give a capacity of {wanted}"
            )
        return max(capacity or 1, wanted)

    def read_into(self, handle: Any) -> None:
        """Put the image into an empty tree that has room for it."""
        header = self._header
        first = bytearray(lib.RT_HEADER_BYTES)
        nodes_bytes = header.nodes * header.node_bytes
        nodes = memoryview(ffi.buffer(lib.rt_image_nodes(handle), nodes_bytes)).cast("B")
        crc32 = self._fill(nodes, self._fill(memoryview(first), 0))
        if crc32 != header.crc32:
            raise self._refused(
                f"its checksum is {header.crc32:08x}, but that of what it holds {crc32:08x}: it "
                "was damaged; use another copy, or load the data again"
            )
        message = ffi.new("char[200]")
        error = lib.rt_image_adopt(handle, ffi.from_buffer(first), header.nodes, message, 200)
        if error == -errno.EILSEQ:
            reason = ffi.string(message).decode("ascii", "replace")
            raise self._refused(f"it holds no sound tree: {reason}")
        if error:
            raise OSError(-error, os.strerror(-error), self._name)

    def _refused(self, reason: str) -> SnapshotError:
        return SnapshotError(f"{self._name}: {reason}")

    def _fill(self, room: memoryview, crc32: int) -> int:
        """Read until `room` is full; return the checksum, carried on."""
        position = 0
        while position < len(room):
            piece = room[position : position + PIECE_BYTES]
            count = self._file.readinto(piece)
            if not count:
                raise self._refused("it became shorter while it was read")
            crc32 = zlib.crc32(piece[:count], crc32)
            position += count
        return crc32

    def _read_header(self) -> _Header:
        page = bytearray(PAGE)
        length = 0
        while length < PAGE and (count := self._file.readinto(memoryview(page)[length:])):
            length += count
        if not page.startswith(MAGIC):
            raise self._refused("it is no snapshot of a tree (its first bytes are others)")
        if length < PAGE:
            raise self._refused(f"it ends within its header, after {length} bytes")
        fields = bytes(page[: _FIELDS.size])
        header = _Header(*_FIELDS.unpack(fields)[1:])
        if header.version != VERSION:
            raise self._refused(
                f"its layout is version {header.version}; this program reads version {VERSION}"
            )
        if _CRC.unpack_from(page, _FIELDS.size)[0] != zlib.crc32(fields):
            raise self._refused("its header was damaged (the header's checksum is another)")
        self._check(header)
        return header

    def _check(self, header: _Header) -> None:
        order = _BYTE_ORDERS.get(header.byte_order, "unknown")
        if order != sys.byteorder:
            raise self._refused(
                f"it was written on a machine with {order}-endian numbers; this one's are "
                f"{sys.byteorder}-endian: load the data again here"
            )
        for name, here in _ours().items():
            there = getattr(header, name)
            if there != here:
                raise self._refused(
                    f"its tree has {name.replace('_', ' ')} {there}, that of this version is "
                    f"{here}: load the data again"
                )
        wanted = lib.RT_HEADER_BYTES + header.nodes * header.node_bytes
        room = header.nodes <= header.capacity_nodes < lib.RT_MAX_NODES
        if header.image_bytes != wanted or not header.capacity_nodes or not room:
            raise self._refused("the sizes in its header contradict each other")
        size = os.fstat(self._file.fileno()).st_size
        if size != PAGE + wanted:
            kind = "was cut off" if size < PAGE + wanted else "has something behind its end"
            raise self._refused(f"it {kind}: {size:,} bytes, not {PAGE + wanted:,}")
