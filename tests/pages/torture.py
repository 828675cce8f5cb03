"""A process that rewrites pages at full speed, and readers that verify each page's checksum.

    python -m tests.pages.torture [--seconds 10] [--library FILE] [SETUP ...]

Each setup is a transport, or ``words``: a fabric of the worst kind, which reads the 8-byte words of
a page one by one, the versions last and else in random order. The exit status is 1 if any page
that a reader took was wrong.
"""

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

import l5
from l5.abc import RemoteRegion
from tests._patience import be_patient
from tests.native._handlers import NATIVE, compiler

LAYOUT = l5.PageLayout(1024, 1024)
ROOT = Path(__file__).parents[2]
SETUPS = {
    "shm": "l5+unix://{directory}/s",
    "unix": "l5+unix://{directory}/s?transports=unix",
    "inproc": "l5+inproc://pages-torture",
    "tcp": "l5+tcp://127.0.0.1:0?transports=tcp",
    "words": "l5+unix://{directory}/s?transports=unix",
}
EMULATED = ("unix", "inproc", "tcp", "words")


@attrs.frozen
class Outcome:
    """What one run saw."""

    wrong: int
    """Pages that were taken and are not whole."""
    statistics: l5.PageStatistics
    seconds: float
    written: int = 0

    def __str__(self) -> str:
        counts = self.statistics
        return (
            f"{counts.reads} pages in {self.seconds:.1f} s, {counts.retries} retries,"
            f" {counts.torn} given up, {self.wrong} wrong; {self.written} written"
        )


def build_library(folder: Path) -> Path:
    """Compile the writer and the judge, for `Library`; unless that has been done already."""
    if ready := os.environ.get("L5_PAGE_LIBRARY"):
        return Path(ready)
    library = folder / "page_library.so"
    source = Path(__file__).parent / "c" / "page_library.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    command = [compiler(), *flags, f"-I{NATIVE}", source, "-o", library]
    subprocess.run(command, check=True)
    return library


class Library:
    """`c/page_library.c` as Python calls it; without the GIL."""

    def __init__(self, path: Path, layout: l5.PageLayout = LAYOUT) -> None:
        self.layout = layout
        library = ctypes.CDLL(str(path))
        self._begin = library.library_begin
        self._begin.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
        self._begin.restype = ctypes.c_void_p
        self._end = library.library_end
        self._end.argtypes = [ctypes.c_void_p]
        self._end.restype = ctypes.c_uint64
        self._good = library.library_good
        self._good.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32]

    def begin(self, view: memoryview) -> int:
        """Start the writer's thread."""
        memory = (ctypes.c_char * view.nbytes).from_buffer(view)
        return int(self._begin(ctypes.addressof(memory), self.layout.count, self.layout.lines))

    def end(self, torture: int) -> int:
        """Stop it; return how many pages it has written."""
        return int(self._end(torture))

    def good(self, payload: bytes, page: int) -> bool:
        """Tell whether a page's checksum is right."""
        return bool(self._good(payload, self.layout.lines, page))


class WordByWord:
    """A region read as a fabric may that promises nothing but whole words."""

    def __init__(self, region: RemoteRegion) -> None:
        self._region = region
        self.size_bytes = region.size_bytes
        self.one_sided = True
        self.in_order = True
        self.mapping = None
        self._random = random.Random(1)

    def _turn(self, word: int) -> tuple[bool, float]:
        """The words with the versions come last: so they say least of the others."""
        return word % 64 == 0, self._random.random()

    def read_now(self, offset: int, length: int) -> bytes:
        """Do as the region does."""
        return self._region.read_now(offset, length)

    async def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read spans, word by word."""
        parts: list[bytes] = []
        for offset, length in spans:
            words = sorted(range(offset, offset + length, 8), key=self._turn)
            found = await self._region.read_many([(word, min(8, length)) for word in words])
            whole = dict(zip(words, found, strict=True))
            parts.append(b"".join(whole[word] for word in sorted(words)))
        return parts


# ---- the owner, a process of its own -----------------------------------------------------------


@asynccontextmanager
async def owning(url: str, library: Library) -> AsyncGenerator[tuple[str, list[int]]]:
    """Serve a region of pages and rewrite them; at the end, say how many were written."""

    async def handle(request: bytes) -> bytes:
        return request

    written: list[int] = []
    with l5.Region.create(LAYOUT.end) as region:
        async with l5.serve(handle, url) as server:
            server.export("pages", region)
            with region.view as view:
                writer = library.begin(view)
                try:
                    yield server.urls[0], written
                finally:
                    written.append(library.end(writer))


async def own(url: str, library: Path) -> None:
    """Be the owner's process, until the standard input ends."""
    async with owning(url, Library(library)) as (reached, written):
        print(reached, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    print(*written, flush=True)


@asynccontextmanager
async def owner(url: str, library: Path) -> AsyncGenerator[tuple[str, list[int]]]:
    """Run the owner's process; yield where it is reached, and at the end what it wrote."""
    command = [sys.executable, "-m", "tests.pages.torture", "--own", url, "--library", library]
    written: list[int] = []
    async with await anyio.open_process([str(word) for word in command], cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = BufferedByteReceiveStream(process.stdout)
        try:
            reached = await said.receive_until(b"\n", 4096)
            yield reached.decode(), written
            await process.stdin.aclose()
            written.append(int(await said.receive_until(b"\n", 64)))
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


# ---- readers -----------------------------------------------------------------------------------


async def read_for(
    region: Any,
    library: Library,
    seconds: float,
    *,
    copies: l5.PageCopies | None = None,
    in_order: bool | None = None,
    catch: bool = False,
    enough: int = 0,
) -> Outcome:
    """Read pages for a while; with `catch`, until a wrong one has come, however long that takes.

    With `enough`, until so many were taken: where processors are emulated a while may be too short.
    """
    choice = random.Random(2)
    wrong = 0
    batch = 1 if isinstance(region, WordByWord) else 8
    begun = time.monotonic()
    with l5.PageReader(region, library.layout, copies=copies, in_order=in_order) as reader:

        def more() -> bool:
            if catch:
                return not wrong
            if enough:
                return reader.statistics.reads < enough
            return time.monotonic() < begun + seconds

        while more():
            pages = [choice.randrange(library.layout.count) for _ in range(batch)]
            try:
                payloads = await reader.read_many(pages)
            except l5.TornRead:
                continue
            wrong += sum(not library.good(p, i) for p, i in zip(payloads, pages, strict=True))
        return Outcome(wrong, reader.statistics, time.monotonic() - begun)


async def torture(
    setup: str,
    library: Path,
    seconds: float,
    *,
    url: str = "",
    copies: l5.PageCopies | None = None,
    catch: bool = False,
) -> Outcome:
    """Run one setup; `copies` other than what the region promises is a planted flaw."""
    with tempfile.TemporaryDirectory(prefix="l5-pages-") as directory:
        where = (url or SETUPS[setup]).format(directory=directory)
        loaded = Library(library)
        run = owning(where, loaded) if setup == "inproc" else owner(where, library)
        async with run as (reached, written):
            async with await l5.connect(reached) as conn:
                region: Any = await conn.open_region("pages")
                assert region.one_sided == (setup not in EMULATED), region.emulated_because
                if setup == "words":
                    region = WordByWord(region)
                outcome = await read_for(region, loaded, seconds, copies=copies, catch=catch)
        assert written[0] > 0, "nobody wrote"
        return attrs.evolve(outcome, written=written[0])


def main(arguments: list[str] | None = None) -> int:
    """Run the setups that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("setups", nargs="*", default=list(SETUPS), metavar="SETUP")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--library", type=Path, help="page_library.c, compiled")
    parser.add_argument("--url", default="", help="where the owner listens; for setups of others")
    parser.add_argument("--own", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.own:
        anyio.run(own, chosen.own, chosen.library)
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="l5-pages-") as folder:
        library: Path = chosen.library or build_library(Path(folder))
        for setup in chosen.setups:

            async def run(setup: str = setup) -> Outcome:
                return await torture(setup, library, chosen.seconds, url=chosen.url)

            outcome = anyio.run(run)
            print(f"{setup}: {outcome}", flush=True)
            wrong += outcome.wrong
    return 1 if wrong else 0


if __name__ == "__main__":
    be_patient()
    sys.exit(main())
