"""Remote memory over RDMA: what the suite of all transports cannot see."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

import l5
from l5._memory_link import MemoryLink
from l5.blocking import connect as connect_here
from l5.rdma import _simulated, verbs
from l5.rdma._end import SEND_DEPTH, End, Memory
from l5.rdma._region_access import LANDING_BYTES, OUTSTANDING_MAX, Access
from l5.rdma._regions import MemoryServer
from l5.rdma._simulated import Fabric, Plan, SimulatedBackend
from tests.rdma._simulated import simulate

SIZE = 1 << 20


@pytest.fixture(scope="module", params=[pytest.param(("trio", {}), id="trio")])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(autouse=True, params=["kind", "hostile:3"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, request.param)


@asynccontextmanager
async def opened(
    *rights: str, strict: bool = False
) -> AsyncGenerator[tuple[list[Any], list[l5.Region], Any, Any]]:
    """Regions, exported by their numbers and opened."""
    owned = [l5.Region.create(SIZE, write="w" in each, atomic="a" in each) for each in rights]
    try:
        async with l5.serve(lambda data: data, "l5+rdma://127.0.0.1:0") as server:
            for number, region in enumerate(owned):
                server.export(str(number), region)
            async with await l5.connect(server.urls[0], strict=strict) as client:
                remotes = [await client.open_region(str(number)) for number in range(len(owned))]
                yield remotes, owned, client, server
    finally:
        for region in owned:
            region.close()


@pytest.mark.anyio
@pytest.mark.parametrize("right", ["write", "atomic"])
async def test_the_owners_device_refuses_what_is_not_granted(right: str) -> None:
    """Also who goes round this library can do no more than was granted."""
    async with opened("") as ((remote,), (owned,), client, _):
        remote.writable = remote.atomic = True
        with pytest.raises(l5.RemoteAccessError, match="not granted"):
            if right == "write":
                await remote.write(0, b"mine now")
            else:
                await remote.fetch_and_add(0, 1)
        assert owned.read(0, 8) == bytes(8)
        assert await client.request(b"sound") == b"sound"
        again = await client.open_region("0")  # over a new link
        assert await again.read(0, 8) == bytes(8)


@pytest.mark.anyio
async def test_a_device_that_answers_no_reads_has_them_executed_by_the_owner() -> None:
    """A READ that was not granted would stall, and with it all that goes behind it."""
    port = _simulated.backend().fabric.ports["sim0"]
    port.limits = attrs.evolve(port.limits, rd_atomic=0)
    async with opened("w") as ((remote,), (owned,), client, _):
        assert not remote.one_sided and "no READs" in remote.emulated_because
        await remote.write(8, b"written")
        assert await remote.read(8, 7) == owned.read(8, 7) == b"written"
        assert await client.request(b"sound") == b"sound"


@pytest.mark.anyio
async def test_closing_while_reads_are_on_their_way_spares_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending: list[int] = []
    release = MemoryLink.release

    async def counted(self: MemoryLink, region: Any) -> None:
        pending.append(len(region._access._pending))
        await release(self, region)

    monkeypatch.setattr(MemoryLink, "release", counted)
    async with opened("w", "w") as ((first, second), (_, owned), _client, _):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(_read_until_closed, first)
            await anyio.sleep(0.01)
            await first.aclose()
        assert pending == [0], "the owner was told too early"
        owned.write(0, b"sound")
        assert await second.read(0, 5) == b"sound"


async def _read_until_closed(remote: Any) -> None:
    with pytest.raises(l5.RemoteAccessError, match="closed here"):
        while True:
            await remote.read(0, 500_000)


@pytest.mark.anyio
async def test_reads_that_were_cancelled_spoil_no_others() -> None:
    async with opened("", strict=True) as ((remote,), (owned,), _client, _):
        owned.write(0, bytes(range(256)) * (SIZE // 256))
        for turn in range(30):
            with anyio.move_on_after(0.0002 * (turn % 5)):
                await remote.read_many([(1, 9000)] * 60)
            assert await remote.read(turn, 3) == bytes((turn, turn + 1, turn + 2))


@pytest.mark.anyio
async def test_a_completion_that_comes_just_before_sleep_is_not_missed() -> None:
    """By a thread: in an event loop it might be another task that looks for all."""
    async with opened("") as (_, _owned, _client, server):

        def use() -> None:
            with connect_here(server.urls[0]) as conn, conn.open_region("0") as region:
                remote: Any = region._region
                queue = remote._access.end.queue
                arm = queue.arm

                def late() -> None:
                    time.sleep(0.01)  # all arrives now: when the queue is armed, nothing rings
                    arm()

                queue.arm = late
                for _ in range(5):
                    assert region.read(0, 8, timeout=60.0) == bytes(8)

        await anyio.to_thread.run_sync(use)


@pytest.mark.anyio
async def test_a_device_without_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l5.rdma._regions._atomics", lambda device: False)
    async with opened("w", "wa") as ((plain, atomic), _owned, _client, _):
        assert plain.one_sided and not atomic.one_sided
        assert "no atomics" in atomic.emulated_because
        assert await atomic.fetch_and_add(0, 1) == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "grant",
    [
        {"address": -1, "key": 1},
        {"address": (1 << 64) - SIZE + 1, "key": 1},
        {"address": 4, "key": 1},
        {"address": 4096, "key": 1 << 32},
        {"address": "4096", "key": 1},
        {"key": True},
        {},
    ],
)
async def test_a_grant_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, grant: dict[str, Any]
) -> None:
    async with opened("wa") as (_, _owned, client, _server):
        monkeypatch.setattr(MemoryServer, "grant", lambda self, granted: grant)
        with pytest.raises(l5.RemoteProtocolError, match="cannot be"):
            await client.open_region("0")
        monkeypatch.undo()


@pytest.mark.anyio
async def test_threads_use_it_without_an_event_loop() -> None:
    async with opened("wa") as (_, (owned,), _client, server):

        def use() -> None:
            with connect_here(server.urls[0]) as conn, conn.open_region("0") as region:
                assert region.one_sided, region.emulated_because
                region.write(8, b"eight by")
                assert region.read_many([(8, 8), (0, 8)]) == [b"eight by", bytes(8)]
                assert region.fetch_and_add(0, 3) == 0

        await anyio.to_thread.run_sync(use)
        assert owned.read(0, 9) == b"\3" + bytes(7) + b"e"


# ---- what is on its way, on a fabric where nothing happens by itself ----------------------------


class _Region:
    """What `Access` uses of a region."""

    def __init__(self, access: Access, memory: verbs.MemoryRegion) -> None:
        self.address = memory.address
        pair = access.end.pair
        self.reads = pair.prepare_reads(access.landing, rkey=memory.rkey, count_max=16)


def test_places_and_slots_are_given_back_by_completions_alone() -> None:
    plan = Plan()
    plan.immediate, plan.manual = False, True
    fabric = Fabric(plan)
    fabric.add_device("sim0", "127.0.0.1")
    with SimulatedBackend(fabric).open("sim0") as device:
        gid = device.gids()[0]
        mine, theirs = (End(device, gid, receives=8) for _ in range(2))
        memory = Memory(SIZE)
        memory.view[:] = bytes(range(256)) * (SIZE // 256)
        theirs.keep(memory.close)
        shared = theirs.register(memory.address, SIZE, verbs.REMOTE_READ, memory)
        mine.connect(theirs.own_address)
        theirs.connect(mine.own_address)
        access = Access(mine)
        region: Any = _Region(access, shared)
        begun: list[Any] = []
        while (batch := access.read(region, [(len(begun), 60_000), (7, 100)])) is not None:
            begun.append(batch)
        assert 4 <= len(begun) <= LANDING_BYTES // 60_000 and access.busy(region)
        places = sorted(place for batch in begun for place in batch.places)
        ends = [at + length for at, length in places]
        assert all(end <= at for end, (at, _) in zip(ends, places[1:], strict=False))
        assert mine.room(SEND_DEPTH - OUTSTANDING_MAX), "nothing is left for the mailbox"
        begun[0].wanted = False  # whoever asked has gone; the bytes still come
        assert access.read(region, [(0, 1)]) is None
        fabric.settle()
        mine.poll()
        assert all(batch.done for batch in begun) and begun[0].data == []
        for number, batch in enumerate(begun[1:], 1):
            whole = bytes(memory.view[number : number + 60_000]), bytes(memory.view[7:107])
            assert batch.data == list(whole)
        assert not access.busy(region) and access.read(region, [(0, 1)]) is not None
        fabric.settle()
        mine.close()
        theirs.close()
