"""Versioned pages over any region: the owner writes, peers read, and nobody gets a torn page.

The memory's format and the proof are in `native/l5_page.h`, the user's view in `docs/pages.md`.
A `PageWriter` is for whoever owns the memory, a `PageReader` for a peer that has opened it; what
the reader has to check follows from how the bytes reach it (`PageCopies`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from ._errors import TornRead
from ._page_values import (
    LINE_BYTES,
    Extent,
    PageCopies,
    PageLayout,
    PageStatistics,
    ReadableRegion,
    page_functions,
)

if TYPE_CHECKING:
    from .abc import Buffer

__all__ = ["PageReader", "PageWriter"]

VERSION_BYTES = 4
SPINS = 64
"""Looks at a mapped page before other tasks are let run."""
PAUSE_FIRST_S = 20e-6
PAUSE_MAX_S = 5e-3

# Python before 3.14 can crash when it collects a cycle in which a memoryview stands. What is held
# here for long is therefore held by a finalizer, from outside of whatever cycle its holder is in.


def _let_go(ffi: Any, buffer: Any, view: memoryview) -> None:
    ffi.release(buffer)
    view.release()


Patch = tuple[int, "Buffer"]
"""(offset in the payload, new bytes)."""


class PageWriter:
    """The owner's end: writes pages in memory that others read meanwhile.

    `memory` is an `l5.Region` (or anything with such a `view`), or a writable buffer that is
    aligned to 64 bytes. There may be one writer of a page at a time; calls of several threads for
    the same page have to be kept apart by the caller. What a writer that died has left behind is
    mended by `write`; until then readers of that page get `TornRead`.
    """

    def __init__(self, memory: Any, layout: PageLayout) -> None:
        lib, ffi = page_functions()
        self.layout = layout
        self._view = memoryview(getattr(memory, "view", memory)).cast("B")
        if self._view.readonly:
            raise ValueError("a writer of pages needs writable memory")
        if self._view.nbytes < layout.end:
            raise ValueError(f"{self._view.nbytes} bytes are less than the {layout.end} of pages")
        self._buffer: Any = ffi.from_buffer("uint8_t[]", self._view)
        self._release = weakref.finalize(self, _let_go, ffi, self._buffer, self._view)
        self._lib, self._ffi = lib, ffi
        if int(ffi.cast("uintptr_t", self._buffer)) % LINE_BYTES:
            self.close()
            raise ValueError("memory of pages must be aligned to 64 bytes")

    def close(self) -> None:
        """Let go of the memory; the pages stay."""
        self._release()

    def __enter__(self) -> PageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _at(self, index: int) -> Any:
        return self._buffer + self.layout.offset_of(index)

    def write(self, index: int, payload: Buffer) -> None:
        """Replace a page's whole payload; what `payload` is too short for becomes zeros."""
        data = memoryview(payload).cast("B")
        if data.nbytes > self.layout.payload_bytes:
            raise ValueError(
                f"a page of {self.layout.page_bytes} bytes holds {self.layout.payload_bytes} of"
                f" payload, not {data.nbytes}"
            )
        source = self._ffi.from_buffer("uint8_t[]", data)
        self._lib.l5_pages_write(self._at(index), self.layout.lines, source, data.nbytes)

    def update(self, index: int, *patches: Patch) -> None:
        """Change parts of a page's payload, all at once for whoever reads it.

        Each patch is ``(offset, data)``, offset within the payload; only lines that a patch
        touches are written, except for their versions. Cheaper than `write` for a few bytes.
        """
        checked: list[tuple[int, memoryview]] = []
        for offset, data in patches:
            view = memoryview(data).cast("B")
            if offset < 0 or offset + view.nbytes > self.layout.payload_bytes:
                raise ValueError(
                    f"{view.nbytes} bytes at {offset} are outside of a page's payload of"
                    f" {self.layout.payload_bytes}"
                )
            if view.nbytes:
                checked.append((offset, view))
        page = self._at(index)
        sources = [(o, self._ffi.from_buffer("uint8_t[]", v), v.nbytes) for o, v in checked]
        self._lib.l5_pages_begin(page)
        for offset, source, length in sources:
            self._lib.l5_pages_patch(page, offset, source, length)
        self._lib.l5_pages_end(page, self.layout.lines)

    def read(self, index: int) -> bytes:
        """Return a page's payload; `TornRead` if its writer died, or writes just now."""
        payload = self._ffi.new("uint8_t[]", self.layout.payload_bytes)
        tried = self._ffi.new("uint64_t *")
        if self._lib.l5_pages_read(payload, self._at(index), self.layout.lines, SPINS, tried):
            raise TornRead(self.layout.offset_of(index), SPINS)
        return bytes(self._ffi.buffer(payload))


class PageReader:
    """A peer's end: returns pages as they were at one moment each.

    Several pages of one call may be of several moments: what must be consistent across pages needs
    a protocol of its users' (docs/pages.md shows one). A page that is being written is read again,
    `attempts_max` times in all and with growing pauses; then `TornRead` is raised. The owner is
    trusted with nothing: what it stores may be anything, but it cannot make a reader wait or
    fail otherwise. A reader belongs to one thread; any number of its tasks may read at once.

    `copies` is found out from the region, unless given: whoever knows that an adapter reads whole
    cache lines says `PageCopies.LINES`. With `in_order`, the spans of one `read_many` are known to
    be read one after the other (RDMA: READs behind each other on one queue pair), so that the
    versions need no round trips of their own.
    """

    def __init__(
        self,
        region: ReadableRegion,
        layout: PageLayout,
        *,
        copies: PageCopies | None = None,
        in_order: bool | None = None,
        attempts_max: int = 32,
    ) -> None:
        self._lib, self._ffi = page_functions()
        if region.size_bytes < layout.end:
            raise ValueError(f"the region has {region.size_bytes} bytes, the pages {layout.end}")
        if attempts_max < 1:
            raise ValueError(f"a page must be read once at least, not {attempts_max} times")
        self.region = region
        self.layout = layout
        self.copies: PageCopies = _copies_of(region) if copies is None else copies
        found_in_order = bool(getattr(region, "in_order", False))
        self.in_order: bool = found_in_order if in_order is None else in_order
        self.attempts_max = attempts_max
        self._reads = self._retries = self._torn = 0
        self._payload = self._ffi.new("uint8_t[]", layout.payload_bytes)
        self._tried = self._ffi.new("uint64_t *")
        self._mapped: Any = None
        if self.copies is PageCopies.MAPPED:
            mapping = region.mapping
            if mapping is None:
                raise ValueError(
                    "this region is not mapped here: its pages cannot be read in place"
                )
            self._mapped = self._ffi.from_buffer("uint8_t[]", mapping)
            self._release = weakref.finalize(self, self._ffi.release, self._mapped)

    @property
    def statistics(self) -> PageStatistics:
        """Counts of this reader."""
        return PageStatistics(self._reads, self._retries, self._torn)

    def close(self) -> None:
        """Let go of a mapping; the region stays open."""
        if self._mapped is not None:
            self._release()
            self._mapped = None

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def read(self, index: int) -> bytes:
        """Return a page's payload. Raises `TornRead`, and what the region's reads raise."""
        if self._mapped is not None:
            offset = self.layout.offset_of(index)
            payload = self._look(offset)
            await self._notice_revocation(offset)
            if payload is not None:
                self._reads += 1
                return payload
            self._retries += 1
        return (await self.read_many([index]))[0]

    async def read_many(self, indexes: Sequence[int]) -> list[bytes]:
        """Return the payloads of several pages, in their order; each is consistent in itself.

        Raises `TornRead` for the first page that kept changing, and what the region's reads raise.
        """
        offsets = [self.layout.offset_of(index) for index in indexes]
        if not offsets:
            return []
        found: dict[int, bytes] = {}
        pause_s = PAUSE_FIRST_S
        for attempt in range(self.attempts_max):
            missing = [offset for offset in dict.fromkeys(offsets) if offset not in found]
            if attempt > 1:  # the second try comes at once: a write takes less than a pause
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if self.copies is PageCopies.MAPPED:
                looks = ((offset, self._look(offset)) for offset in missing)
                found |= {offset: payload for offset, payload in looks if payload is not None}
                await self._notice_revocation(missing[0])
            else:
                found |= await self._copy(missing)
            if len(found) == len(set(offsets)):
                break
            self._retries += len(missing) - len(found.keys() & set(missing))
        else:
            self._torn += 1
            raise TornRead(next(o for o in offsets if o not in found), self.attempts_max)
        self._reads += len(offsets)
        return [found[offset] for offset in offsets]

    def read_now(self, index: int) -> bytes:
        """Return a page's payload without letting other tasks run; for mapped regions only.

        `TornRead` after `attempts_max` looks, and what the region's `read_now` raises.
        """
        offset = self.layout.offset_of(index)
        if self.copies is not PageCopies.MAPPED:
            raise ValueError("only pages that are mapped can be read at once: use read")
        for _ in range(self.attempts_max):
            payload = self._look(offset)
            self.region.read_now(offset, VERSION_BYTES)  # notices revocation, as below
            if payload is not None:
                self._reads += 1
                return payload
        self._torn += 1
        raise TornRead(offset, self.attempts_max * SPINS)

    def _look(self, offset: int) -> bytes | None:
        """Read a page in place; None while it is being written."""
        if self._mapped is None:
            raise anyio.ClosedResourceError("this reader of pages is closed")
        tried = self._tried
        tried[0] = 0
        at = self._mapped + offset
        code = self._lib.l5_pages_read(self._payload, at, self.layout.lines, SPINS, tried)
        self._retries += tried[0] - bool(code)
        return None if code else bytes(self._ffi.buffer(self._payload))

    async def _notice_revocation(self, offset: int) -> None:
        """Ask the region: a mapping does not notice that its owner has revoked it."""
        await self.region.read_many(((offset, VERSION_BYTES),))

    async def _copy(self, offsets: Sequence[int]) -> dict[int, bytes]:
        """Copy pages and judge the copies; those that are torn are left out."""
        befores, copies, afters = await self._copies(offsets)
        found: dict[int, bytes] = {}
        for offset, before, copy, after in zip(offsets, befores, copies, afters, strict=True):
            payload = self._judge(copy, before, after)
            if payload is not None:
                found[offset] = payload
        return found

    async def _copies(
        self, offsets: Sequence[int]
    ) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
        """Read versions, pages and versions, as far as they are looked at, in that order."""
        pages = [(offset, self.layout.page_bytes) for offset in offsets]
        versions = [(offset, VERSION_BYTES) for offset in offsets]
        none = [bytes(VERSION_BYTES)] * len(offsets)
        first = self.copies is PageCopies.WORDS
        last = self.copies is not PageCopies.LINES
        if self.in_order:
            spans = [*(versions if first else ()), *pages, *(versions if last else ())]
            parts = await self.region.read_many(spans)
            at = len(pages) * first
            return (
                parts[:at] if first else none,
                parts[at : at + len(pages)],
                parts[at + len(pages) :] if last else none,
            )
        befores = await self.region.read_many(versions) if first else none
        copies = await self.region.read_many(pages)
        afters = await self.region.read_many(versions) if last else none
        return befores, copies, afters

    def _judge(self, copy: bytes, before: bytes, after: bytes) -> bytes | None:
        if len(copy) != self.layout.page_bytes:
            return None
        code = self._lib.l5_pages_take(
            self._payload,
            self._ffi.from_buffer("uint8_t[]", copy),
            self.layout.lines,
            self.copies.value,
            int.from_bytes(before, "little"),
            int.from_bytes(after, "little"),
        )
        return None if code else bytes(self._ffi.buffer(self._payload))

    async def read_extent(self, extent: Extent) -> bytes:
        """Return the data of an extent; `TornRead` when it is not what its checksum says.

        That may be as the owner has freed or replaced it: read the page that points to it again.
        """
        (data,) = await self.region.read_many([(extent.offset, extent.length)])
        if not extent.matches(data):
            self._torn += 1
            raise TornRead(extent.offset, 1)
        return data


def _copies_of(region: ReadableRegion) -> PageCopies:
    """Return what a region promises of its copies (see `l5.abc.RemoteRegion`)."""
    if region.mapping is not None:
        return PageCopies.MAPPED
    return PageCopies.WORDS if region.one_sided else PageCopies.ASCENDING
