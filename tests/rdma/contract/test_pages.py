"""Versioned pages read by RDMA READs while a thread rewrites them: no wrong page is taken.

In the emulated machine these are READs of Soft-RoCE's, which copies by `memcpy`; elsewhere the
simulated device's, which hands over pieces in any order that its plan allows.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import anyio.lowlevel
import pytest

import l5
from l5.rdma._simulated import Fabric, SimulatedBackend, hostile
from l5.rdma.verbs import QueuePairOptions
from tests.pages.torture import Library, build_library, read_for

from ._rig import Area, End, Rig, rig_on

LAYOUT = l5.PageLayout(4096, 1024)
SOFTROCE = bool(os.environ.get("SOFTROCE"))
READS_MAX = 32


class VerbsRegion:
    """The other end's memory, by READs behind each other on one queue pair."""

    one_sided = True
    in_order = True
    mapping = None

    def __init__(self, mine: End, theirs: Area) -> None:
        self.size_bytes = LAYOUT.end
        self._mine, self._theirs = mine, theirs
        self._batch = mine.pair.prepare_reads(
            mine.area.region, rkey=theirs.region.rkey, count_max=READS_MAX
        )

    def read_now(self, offset: int, length: int) -> bytes:
        raise NotImplementedError

    async def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        reads: list[tuple[int, int, int]] = []
        at = 0
        for offset, length in spans:
            reads.append((self._mine.area.address + at, self._theirs.address + offset, length))
            at += length
        self._batch.post(reads)
        while not (done := self._mine.sends.poll()):
            await anyio.lowlevel.checkpoint()
        assert [one.status for one in done] == [0], done[0].text
        found: list[bytes] = []
        at = 0
        for _, length in spans:
            found.append(bytes(self._mine.area.view[at : at + length]))
            at += length
        return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(build_library(tmp_path_factory.mktemp("pages")), LAYOUT)


@pytest.fixture
def anyio_backend() -> str:
    """One loop: READs do not know which."""
    return "asyncio"


@contextmanager
def torture(rig: Rig, library: Library) -> Generator[VerbsRegion]:
    """Let a thread rewrite one end's pages; yield them as the other end reads them."""
    mine, theirs = rig.pair(QueuePairOptions(send_depth=2 * READS_MAX))
    area = Area(theirs.domain, LAYOUT.end)
    try:
        writer = library.begin(area.view)
        try:
            yield VerbsRegion(mine, area)
        finally:
            assert library.end(writer) > 0, "nobody wrote"
    finally:
        area.close()


@pytest.mark.anyio
@pytest.mark.parametrize("in_order", [True, False], ids=["pipelined", "one by one"])
async def test_no_wrong_page_is_taken(
    rig: Rig, library: Library, request: pytest.FixtureRequest, in_order: bool
) -> None:
    if in_order and "unordered" in request.node.callspec.id:
        return  # READs in any order: who reads has to wait for each, as in the other case
    with torture(rig, library) as region:
        enough = 1_000 if SOFTROCE else 0
        outcome = await read_for(region, library, 1.0, in_order=in_order, enough=enough)
    print(outcome)
    assert outcome.wrong == 0
    assert outcome.statistics.reads > 0


@pytest.mark.anyio
@pytest.mark.parametrize("copies", [l5.PageCopies.LINES, l5.PageCopies.ASCENDING])
async def test_a_check_that_is_too_weak_is_found_out(
    library: Library, copies: l5.PageCopies
) -> None:
    fabric = Fabric(hostile(7))
    fabric.add_device("sim0", "127.0.0.1")
    with rig_on(SimulatedBackend(fabric), "sim0", "127.0.0.1") as rig:
        with torture(rig, library) as region:
            outcome = await read_for(region, library, 0.0, copies=copies, catch=True)
    print(outcome)
    assert outcome.wrong > 0
