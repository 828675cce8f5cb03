"""What versioned pages are made of, as values: layouts, kinds of copies, extents.

See `_pages.py` for those who write and read them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from . import native
from ._errors import TransportUnavailable

if TYPE_CHECKING:
    from .abc import Buffer

__all__ = [
    "Extent",
    "PageCopies",
    "PageLayout",
    "PageStatistics",
    "ReadableRegion",
    "page_functions",
]

LINE_BYTES = 64
LINE_PAYLOAD_BYTES = 60
PAGE_BYTES_MIN = 512
PAGE_BYTES_MAX = 65536


class PageCopies(Enum):
    """How the bytes of a page reach a reader; each asks for more checks than the one above it."""

    MAPPED = 0
    """They do not: the owner's memory is mapped here, and coherent."""
    LINES = 1
    """Each line of 64 bytes is of one moment. So it is with adapters that read host memory by
    cache lines, which no standard promises; one read does for a page."""
    ASCENDING = 2
    """Aligned words of 8 bytes, in each line the first one first: what regions promise that are
    read by a mapping or by asking the owner. One read of the page and one of a version."""
    WORDS = 3
    """Aligned words of 8 bytes in any order: all that RDMA promises. A version, the page, and the
    version again."""


class ReadableRegion(Protocol):
    """What a `PageReader` needs of a region; `l5.abc.RemoteRegion` has it."""

    size_bytes: int
    one_sided: bool

    @property
    def mapping(self) -> memoryview | None:
        """The owner's memory itself, or None."""
        ...

    def read_now(self, offset: int, length: int) -> bytes:
        """Read at once; used with a mapping only."""
        ...

    async def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read spans."""
        ...


@attrs.frozen
class PageLayout:
    """Where the pages are: `count` of `page_bytes`, one after the other, from `offset` on.

    `page_bytes` is a power of two from 512 to 65536. Of 64 bytes 60 are payload. The memory of a
    new region, all zeros, is pages of zeros.
    """

    count: int
    page_bytes: int = 1024
    offset: int = 0

    def __attrs_post_init__(self) -> None:
        size = self.page_bytes
        if not PAGE_BYTES_MIN <= size <= PAGE_BYTES_MAX or size & (size - 1):
            raise ValueError(f"a page has a power of two of bytes, 512 to 65536, not {size}")
        if self.count < 1:
            raise ValueError(f"there must be a page, not {self.count}")
        if self.offset < 0 or self.offset % LINE_BYTES:
            raise ValueError(f"pages begin at a multiple of 64 bytes, not at {self.offset}")

    @property
    def lines(self) -> int:
        """Lines of a page."""
        return self.page_bytes // LINE_BYTES

    @property
    def payload_bytes(self) -> int:
        """Bytes of a page that its users see."""
        return self.lines * LINE_PAYLOAD_BYTES

    @property
    def end(self) -> int:
        """Where the last page ends: as large must a region be."""
        return self.offset + self.count * self.page_bytes

    def offset_of(self, index: int) -> int:
        """Return where a page begins in the region."""
        if not 0 <= index < self.count:
            raise IndexError(f"page {index} of {self.count}")
        return self.offset + index * self.page_bytes


@attrs.frozen
class PageStatistics:
    """What a reader has done so far."""

    reads: int
    """Pages that were returned."""
    retries: int
    """Looks that found a page being written, or torn."""
    torn: int
    """Pages that were given up, by `TornRead`."""


def page_functions() -> tuple[Any, Any]:
    """Return the C functions and cffi; `TransportUnavailable` without the C extension."""
    if not native.available:
        raise TransportUnavailable("pages", native.reason)
    return native.lib, native.ffi


_EXTENT = struct.Struct("<QIQ")


@attrs.frozen
class Extent:
    """Data of any size outside of pages: what points to it, in a page, carries its checksum.

    Write the data first, where nobody points to, then the page. Space is used again at the
    owner's discretion: who still has the old pointer notices by the checksum (CRC-64: a wrong
    extent is taken for right once in 1.8e19), and reads the page again.
    """

    offset: int
    length: int
    checksum: int

    SIZE_BYTES = _EXTENT.size
    """What `pack` makes."""

    @classmethod
    def of(cls, offset: int, data: Buffer) -> Extent:
        """Return the extent that holds `data` at `offset` of its region."""
        view = memoryview(data).cast("B")
        return cls(offset, view.nbytes, _checksum(offset, view))

    def matches(self, data: Buffer) -> bool:
        """Tell whether this is the extent's data."""
        view = memoryview(data).cast("B")
        return view.nbytes == self.length and _checksum(self.offset, view) == self.checksum

    def pack(self) -> bytes:
        """Return it as bytes, for a page."""
        return _EXTENT.pack(self.offset, self.length, self.checksum)

    @classmethod
    def unpack(cls, data: Buffer) -> Extent:
        """Return what `pack` has packed, from the first bytes of `data`."""
        return cls(*_EXTENT.unpack_from(data))


def _checksum(offset: int, data: memoryview) -> int:
    """Return the checksum of data at a place: moved data is other data."""
    lib, ffi = page_functions()
    place = ffi.from_buffer("uint8_t[]", offset.to_bytes(8, "little"))
    start = lib.l5_pages_crc64(0, place, 8)
    return int(lib.l5_pages_crc64(start, ffi.from_buffer("uint8_t[]", data), data.nbytes))
