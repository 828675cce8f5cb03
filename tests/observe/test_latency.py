"""Histograms of latencies, and the counters of waiting."""

import struct
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import l5
from l5 import _latency, native
from l5._latency import BUCKETS, Histogram, bucket_begin_ns, bucket_of, measure
from l5._statistics import loop_statistics_of

pytestmark = pytest.mark.anyio
TRANSPORTS = ["inproc", "tcp", "unix", "shm"]


def url_of(transport: str, folder: Path) -> str:
    urls = {
        "inproc": f"l5+inproc://{folder.name}",
        "tcp": "l5+tcp://127.0.0.1:0",
        "unix": f"l5+unix://{folder}/s?transports=unix",
        "shm": f"l5+shm://{folder}/s",
    }
    return urls[transport]


@given(ns=st.integers(0, 1 << 40))
def test_a_duration_is_in_its_bucket(ns: int) -> None:
    bucket = bucket_of(ns)
    assert bucket_begin_ns(bucket) <= ns
    assert bucket == BUCKETS - 1 or ns < bucket_begin_ns(bucket + 1)
    assert bucket_begin_ns(bucket + 1) - bucket_begin_ns(bucket) <= max(1, ns / 8)


@given(ns=st.integers(0, 1 << 63))
def test_c_has_the_same_buckets(ns: int) -> None:
    from l5._fast import latency_bucket

    assert latency_bucket(ns) == bucket_of(ns)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200), st.floats(0.1, 100))
def test_percentiles_are_within_their_bucket(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    exact = ordered[max(1, -int(-len(values) * percent // 100)) - 1]
    found = histogram.percentile_ns(percent)
    assert found is not None and abs(found - exact) <= exact / 8 + 1
    assert Histogram.from_sparse(histogram.sparse()).counts == histogram.counts


def test_differences() -> None:
    earlier, later = Histogram(), Histogram()
    assert earlier.percentile_ns(50) is None
    for ns in (10, 100, 1000):
        later.add(ns)
    assert later.since(earlier).total == 3
    earlier.add(5)
    assert later.since(earlier).counts == later.counts  # it began anew
    packed = struct.pack(f"={BUCKETS}Q", *later.counts)
    assert Histogram.from_ring(packed).counts == later.counts
    assert Histogram.from_ring(b"").total == 0


async def slow(request: bytes) -> bytes:
    if request == b"slow":
        await anyio.sleep(0.02)
    elif request == b"never":
        await anyio.sleep_forever()
    return request


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_requests_are_measured_at_both_ends_while_watched(
    transport: str, tmp_path: Path
) -> None:
    async with l5.serve(slow, url_of(transport, tmp_path)) as server:
        async with await l5.connect(server.urls[0]) as conn:
            assert conn.transport == transport
            await conn.request(b"before")
            [theirs] = server._sessions
            ours = conn._session
            assert ours.watch is None and theirs.watch is None
            for session in (ours, theirs):
                measure(session, True)
                measure(session, True)
            for _ in range(20):
                await conn.request(b"quick")
            await conn.request(b"slow", deadline=60.0)
            await conn.request(b"slow")
            with pytest.raises(l5.DeadlineExceeded):
                await conn.request(b"never", deadline=0.05)
            # What was cancelled at the server was answered, and not handled.
            for session, count in ((ours, 23), (theirs, 22)):
                watch: Any = session.watch
                with anyio.fail_after(60):
                    while watch.histogram().total < count:
                        await anyio.sleep(0.001)
                histogram = watch.histogram()
                assert histogram.total == count
                # The two slow ones are the slowest, and took as long as they slept.
                assert histogram.percentile_ns(100) > 19e6
                assert sum(n for b, n in histogram.sparse().items() if b >= bucket_of(19_000_000))
                measure(session, False)
                assert session.watch is None
            await conn.request(b"after")


async def test_counters_of_requests_rings_and_sleeping(tmp_path: Path) -> None:
    async with l5.serve(slow, url_of("shm", tmp_path)) as server:
        async with await l5.connect(server.urls[0]) as conn:
            before = loop_statistics_of(conn._session.hub)
            for number in range(10):
                await conn.request(b"slow" if number == 5 else bytes(100))
            ours = conn.statistics()
            theirs = l5._statistics.statistics_of(next(iter(server._sessions)))
            # On a busy machine the time may be up before the loop gets to its sleep.
            while (after := loop_statistics_of(conn._session.hub)).slept_ns < (
                before.slept_ns + 10_000_000
            ):
                await conn.request(b"slow")
    assert (ours.requests_sent, ours.requests_answered) == (10, 0)
    assert (theirs.requests_sent, theirs.requests_answered) == (0, 10)
    assert ours.ring is not None and ours.ring.size == 1 << 20
    assert 0 <= ours.ring.sent < 10 * 256 and ours.ring.waiting == 0
    assert after.sleeps > before.sleeps


async def test_what_waits_in_a_ring_is_seen(tmp_path: Path) -> None:
    opened = anyio.Event()
    done = anyio.Event()

    async def never_reads(conn: l5.Connection) -> None:
        opened.set()
        await done.wait()

    async with l5.serve(never_reads, url_of("shm", tmp_path), per="connection") as server:
        async with await l5.connect(server.urls[0]) as conn:
            await opened.wait()
            for _ in range(10):
                conn._session.channel.try_send(1, 0, 1, bytes(1000))
            [theirs] = server._sessions
            ring = l5._statistics.statistics_of(theirs).ring
            assert ring is not None and ring.waiting == 10 * 1024
            done.set()


async def test_a_closed_ring_is_empty() -> None:
    assert native.available
    async with l5.serve(slow, "l5://127.0.0.1:0") as server:
        conn = await l5.connect(server.urls[0])
        measure(conn._session, True)
        await conn.aclose()
    assert conn.statistics().ring == l5._statistics.RingFill(1 << 20, 0, 0)
    assert _latency.Watch(None).histogram().total == 0
