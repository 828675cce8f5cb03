"""`l5.PageWriter` and `l5.PageReader` on memory of this process: what is written is read."""

import ctypes
import random
import struct
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l5
from tests.pages._fake import FakeRegion, Span

LAYOUT = l5.PageLayout(3, 512)
VERSIONS = slice(0, None, 64)


def aligned(size: int) -> memoryview:
    """Return zeros at a multiple of 64."""
    raw = bytearray(size + 64)
    skip = -ctypes.addressof(ctypes.c_char.from_buffer(raw)) % 64
    return memoryview(raw)[skip : skip + size]


@pytest.fixture
def memory() -> Iterator[memoryview]:
    with aligned(LAYOUT.end) as view:
        yield view


class Region(FakeRegion):
    """A fake of aligned memory."""

    def __init__(self, view: memoryview, *, mapped: bool = False, one_sided: bool = False) -> None:
        super().__init__(bytearray(), mapped=mapped, one_sided=one_sided)
        self.view = view
        self.size_bytes = view.nbytes
        self.copy = lambda o, n: bytes(view[o : o + n])

    @property
    def mapping(self) -> memoryview | None:
        return self.view.toreadonly() if self.mapped else None


def versions(view: memoryview, index: int) -> list[int]:
    page = bytes(view[LAYOUT.offset_of(index) : LAYOUT.offset_of(index) + LAYOUT.page_bytes])
    return [struct.unpack_from("<I", page, at)[0] for at in range(0, len(page), 64)]


# ---- layouts -----------------------------------------------------------------------------------


def test_a_layout_knows_its_sizes() -> None:
    layout = l5.PageLayout(10, 1024, offset=4096)
    assert (layout.lines, layout.payload_bytes, layout.end) == (16, 960, 4096 + 10240)
    assert layout.offset_of(9) == 4096 + 9216
    for index in (-1, 10):
        with pytest.raises(IndexError):
            layout.offset_of(index)


@pytest.mark.parametrize(
    ("count", "page_bytes", "offset"),
    [(1, 256, 0), (1, 131072, 0), (1, 1000, 0), (0, 1024, 0), (1, 1024, 32), (1, 1024, -64)],
)
def test_a_layout_that_cannot_be(count: int, page_bytes: int, offset: int) -> None:
    with pytest.raises(ValueError, match=r"page"):
        l5.PageLayout(count, page_bytes, offset)


# ---- the writer --------------------------------------------------------------------------------


def test_memory_that_does_not_do() -> None:
    view = aligned(LAYOUT.end + 64)
    with pytest.raises(ValueError, match="writable"):
        l5.PageWriter(view.toreadonly(), LAYOUT)
    with pytest.raises(ValueError, match="less than"):
        l5.PageWriter(view[:1024], LAYOUT)
    with pytest.raises(ValueError, match="aligned"):
        l5.PageWriter(view[8:], LAYOUT)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 2), st.binary(max_size=480)),
            st.tuples(
                st.just("update"),
                st.integers(0, 2),
                st.lists(st.tuples(st.integers(0, 420), st.binary(max_size=60)), max_size=3),
            ),
        ),
        max_size=12,
    )
)
@settings(max_examples=60)
def test_what_is_written_is_read(steps: list[tuple[str, int, bytes | list[Span]]]) -> None:
    view = aligned(LAYOUT.end)
    model = [bytearray(480) for _ in range(3)]
    written = [0, 0, 0]
    with l5.PageWriter(view, LAYOUT) as writer:
        for _, index, what in steps:
            if isinstance(what, bytes):
                writer.write(index, what)
                model[index][:] = what.ljust(480, b"\0")
            else:
                writer.update(index, *what)  # type: ignore[arg-type]
                for offset, data in what:
                    model[index][offset : offset + len(data)] = data  # type: ignore[arg-type]
            written[index] += 1
        for index in range(3):
            assert writer.read(index) == bytes(model[index])
            assert versions(view, index) == [2 * written[index]] * 8


def test_what_does_not_fit_changes_nothing(memory: memoryview) -> None:
    with l5.PageWriter(memory, LAYOUT) as writer:
        writer.write(0, b"x" * 480)
        with pytest.raises(ValueError, match="481"):
            writer.write(0, bytes(481))
        for patch in ((470, bytes(11)), (-1, b"y")):
            with pytest.raises(ValueError, match="outside"):
                writer.update(0, (0, b"z"), patch)
        with pytest.raises(IndexError):
            writer.write(3, b"")
        assert writer.read(0) == b"x" * 480
        assert versions(memory, 0) == [2] * 8


def test_what_a_dead_writer_left_is_mended_by_the_next(memory: memoryview) -> None:
    with l5.PageWriter(memory, LAYOUT) as writer:
        writer.write(0, b"whole")
        memory[0:4] = struct.pack("<I", 3)  # a writer began, and died
        memory[64:68] = struct.pack("<I", 4)
        with pytest.raises(l5.TornRead):
            writer.read(0)
        writer.write(0, b"mended")
        assert versions(memory, 0) == [6] * 8
        assert writer.read(0).rstrip(b"\0") == b"mended"


# ---- readers -----------------------------------------------------------------------------------

KINDS = {
    "mapped": {"mapped": True, "one_sided": True},
    "emulated": {},
    "verbs": {"one_sided": True},
}
FOUND = {
    "mapped": l5.PageCopies.MAPPED,
    "emulated": l5.PageCopies.ASCENDING,
    "verbs": l5.PageCopies.WORDS,
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(KINDS))
async def test_pages_are_read(memory: memoryview, kind: str) -> None:
    region = Region(memory, **KINDS[kind])
    with l5.PageWriter(memory, LAYOUT) as writer, l5.PageReader(region, LAYOUT) as reader:
        assert reader.copies is FOUND[kind]
        for index in range(3):
            writer.write(index, bytes([index + 1]) * 480)
        assert await reader.read(1) == b"\2" * 480
        assert await reader.read_many([2, 0, 2]) == [b"\3" * 480, b"\1" * 480, b"\3" * 480]
        assert await reader.read_many([]) == []
        assert reader.statistics == l5.PageStatistics(reads=4, retries=0, torn=0)


@pytest.mark.anyio
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(
    ("copies", "reads"),
    [
        (l5.PageCopies.LINES, ["page"]),
        (l5.PageCopies.ASCENDING, ["page", "version"]),
        (l5.PageCopies.WORDS, ["version", "page", "version"]),
    ],
)
async def test_what_is_looked_at_and_when(
    memory: memoryview, copies: l5.PageCopies, reads: list[str], in_order: bool
) -> None:
    region = Region(memory)
    spans = {"page": (512, 512), "version": (512, 4)}
    expected = [spans[read] for read in reads]
    reader = l5.PageReader(region, LAYOUT, copies=copies, in_order=in_order)
    assert await reader.read(1) == bytes(480)
    assert region.calls == ([expected] if in_order else [[span] for span in expected])


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_page_that_is_being_written_is_read_again(memory: memoryview, kind: str) -> None:
    region = Region(memory, **KINDS[kind])
    with l5.PageWriter(memory, LAYOUT) as writer, l5.PageReader(region, LAYOUT) as reader:
        writer.write(0, b"new")
        memory[0:4] = struct.pack("<I", 3)
        looks = 0

        def finish(span: Span) -> None:
            nonlocal looks
            looks += 1
            if looks == 4:
                memory[0:4] = struct.pack("<I", 2)

        region.before_read = finish
        assert (await reader.read_many([1, 0]))[1].rstrip(b"\0") == b"new"
        assert reader.statistics.reads == 2
        assert reader.statistics.retries > 0
        assert reader.statistics.torn == 0


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_page_that_never_rests_is_given_up(memory: memoryview, kind: str) -> None:
    region = Region(memory, **KINDS[kind])
    memory[512:516] = struct.pack("<I", 7)
    with l5.PageReader(region, LAYOUT, attempts_max=5) as reader:
        with pytest.raises(l5.TornRead, match="offset 512 changed during each of 5") as raised:
            await reader.read_many([0, 1])
        assert (raised.value.offset, raised.value.attempts_count) == (512, 5)
        assert reader.statistics.torn == 1
        assert reader.statistics.retries >= 5
        assert await reader.read(0) == bytes(480)


@pytest.mark.anyio
async def test_each_kind_of_torn_copy_is_refused(memory: memoryview) -> None:
    """The page changes between two spans, or within one; only the right check notices."""
    with l5.PageWriter(memory, LAYOUT) as writer:
        writer.write(0, b"\1" * 480)
        old = bytes(memory[:512])
        writer.write(0, b"\2" * 480)
        new = bytes(memory[:512])
        lines = new[:256] + old[256:]  # lines of two moments
        stale = bytearray(new)  # words of the old page under the new versions
        stale[8:64] = old[8:64]
        ahead = bytearray(old)  # words of the new page under the old versions
        ahead[8:64] = new[8:64]
    for copies, copy, befores, after in (
        (l5.PageCopies.LINES, lines, old, new),
        (l5.PageCopies.ASCENDING, lines, old, new),
        (l5.PageCopies.ASCENDING, bytes(ahead), old, new),
        (l5.PageCopies.WORDS, bytes(ahead), old, new),
        (l5.PageCopies.WORDS, bytes(stale), old, new),
    ):
        region = Region(memory)
        parts = {
            l5.PageCopies.LINES: [copy],
            l5.PageCopies.ASCENDING: [copy, after[:4]],
            l5.PageCopies.WORDS: [befores[:4], copy, after[:4]],
        }
        torn = iter(parts[copies])
        rest = region.copy
        region.copy = lambda o, n, torn=torn, rest=rest: next(torn, None) or rest(o, n)
        reader = l5.PageReader(region, LAYOUT, copies=copies, in_order=True)
        assert await reader.read(0) == b"\2" * 480
        assert reader.statistics.retries == 1


@pytest.mark.anyio
async def test_a_copy_of_another_length_is_never_taken(memory: memoryview) -> None:
    region = Region(memory)
    region.copy = lambda o, n: bytes(n - 1)
    reader = l5.PageReader(region, LAYOUT, attempts_max=2)
    with pytest.raises(l5.TornRead):
        await reader.read(0)


def test_reading_at_once(memory: memoryview) -> None:
    region = Region(memory, mapped=True, one_sided=True)
    with l5.PageWriter(memory, LAYOUT) as writer, l5.PageReader(region, LAYOUT) as reader:
        writer.write(2, b"now")
        assert reader.read_now(2).startswith(b"now")
        memory[0:4] = struct.pack("<I", 1)
        with pytest.raises(l5.TornRead):
            reader.read_now(0)
    with pytest.raises(ValueError, match="mapped"):
        l5.PageReader(Region(memory), LAYOUT).read_now(0)


@pytest.mark.anyio
async def test_a_reader_that_is_closed_says_so(memory: memoryview) -> None:
    reader = l5.PageReader(Region(memory, mapped=True, one_sided=True), LAYOUT)
    reader.close()
    reader.close()
    with pytest.raises(anyio.ClosedResourceError):
        await reader.read(0)
    with pytest.raises(anyio.ClosedResourceError):
        reader.read_now(0)


def test_regions_that_do_not_do(memory: memoryview) -> None:
    with pytest.raises(ValueError, match="1536"):
        l5.PageReader(Region(memory[:1024]), LAYOUT)
    with pytest.raises(ValueError, match="once"):
        l5.PageReader(Region(memory), LAYOUT, attempts_max=0)
    with pytest.raises(ValueError, match="mapped"):
        l5.PageReader(Region(memory), LAYOUT, copies=l5.PageCopies.MAPPED)


def test_revocation_of_a_mapping_is_noticed(memory: memoryview) -> None:
    region = Region(memory, mapped=True, one_sided=True)

    def revoked(span: Span) -> None:
        raise l5.RemoteAccessError("revoked")

    with l5.PageReader(region, LAYOUT) as reader:
        region.before_read = revoked
        with pytest.raises(l5.RemoteAccessError):
            reader.read_now(0)


# ---- extents -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_extent_is_what_its_checksum_says(memory: memoryview) -> None:
    data = random.Random(1).randbytes(333)
    extent = l5.Extent.of(100, data)
    assert l5.Extent.unpack(extent.pack() + b"more") == extent
    assert len(extent.pack()) == l5.Extent.SIZE_BYTES
    memory[100:433] = data
    reader = l5.PageReader(Region(memory), LAYOUT)
    assert await reader.read_extent(extent) == data
    for at in (100, 250, 432):
        memory[at] ^= 1
        with pytest.raises(l5.TornRead, match="100"):
            await reader.read_extent(extent)
        memory[at] ^= 1
    assert not extent.matches(data[:-1])
    moved = l5.Extent(101, extent.length, extent.checksum)
    assert not moved.matches(data), "data that has moved is other data"
