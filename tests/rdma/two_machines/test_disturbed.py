"""RDMA between two machines: real packets, a network that loses some, a peer that dies."""

import hashlib
import os
import struct
from collections.abc import Callable
from contextlib import aclosing

import anyio
import numpy as np
import pytest

import l5
from catfish_app import RTreeClient
from tests.catfish._support import boxes, meeting, sorted_ids
from tests.rdma.two_machines import peer
from tests.rdma.two_machines.conftest import PEER, here

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
BATCH = 16
PATIENT = {"hello_timeout": 60.0, "connect_timeout": 90.0}

Ask = Callable[[str], str]
Disturb = Callable[[str], None]


async def connect(port: int = peer.ECHO, **options: object) -> l5.Connection:
    conn = await l5.connect(f"l5://{PEER}:{port}", **PATIENT, **options)
    assert conn.transport == "rdma", str(conn.upgrade_report)
    return conn


def message(number: int, size: int) -> bytes:
    """A message that no other is: its number, noise of that number, and the digest of both."""
    body = struct.pack("<I", number) + hashlib.sha256(b"%d" % number).digest() * (size // 32 + 1)
    body = body[: max(4, size - 16)]
    return body + hashlib.blake2b(body, digest_size=16).digest()


async def exchange(conn: l5.Connection, count: int, sizes: tuple[int, ...]) -> None:
    """Send `count` requests by BATCH tasks at once, and check every answer whole."""
    left = iter(range(count))

    async def ask_all() -> None:
        for number in left:
            sent = message(number, sizes[number % len(sizes)])
            answer = (await conn.request(sent))[::-1]
            assert answer == sent
            assert hashlib.blake2b(answer[:-16], digest_size=16).digest() == answer[-16:]

    async with anyio.create_task_group() as tasks:
        for _ in range(BATCH):
            tasks.start_soon(ask_all)


async def test_large_messages(ask: Ask) -> None:
    async with await connect() as conn:
        for size in (5_000, 70_000, 1_000_000):
            sent = os.urandom(size)
            assert await conn.request(sent) == sent[::-1]


async def test_packets_that_are_lost(ask: Ask, network: Disturb) -> None:
    network("loss 1%")
    async with await connect() as conn:
        await exchange(conn, 1_000, (40, 300, 3_000))


async def test_packets_out_of_order(ask: Ask, network: Disturb) -> None:
    network("delay 2ms reorder 75% 25%")
    async with await connect() as conn:
        await exchange(conn, 500, (40, 300, 9_000))


async def test_a_served_tree_is_searched(ask: Ask) -> None:
    rects = boxes(2_000, seed=5)
    async with await RTreeClient.connect(f"l5://{PEER}:{peer.TREE}", **PATIENT) as tree:
        assert tree.connection.transport == "rdma", str(tree.connection.upgrade_report)
        await tree.insert_many(rects, np.arange(len(rects), dtype=np.uint64))
        for query in boxes(40, seed=6, edge=0.2).tolist():
            assert sorted_ids(await tree.search(query)) == meeting(rects, query)


async def test_ten_thousand_messages_each_way(ask: Ask) -> None:
    async with await connect() as conn:
        await exchange(conn, 10_000, (20, 64, 200, 700))


async def test_a_peer_that_is_killed(ask: Ask) -> None:
    pid = ask("spawn")
    with anyio.fail_after(120):
        while True:
            try:
                conn = await connect(peer.MORTAL)
                break
            except l5.ConnectError:
                await anyio.sleep(0.5)
        async with aclosing(conn):
            assert await conn.request(b"hello") == b"olleh"
            ask(f"kill -9 {pid}")
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await conn.request(b"anybody?")


async def test_a_link_that_goes_down_and_comes_up(ask: Ask) -> None:
    """Shorter than the retries last: nothing is lost. Whoever sends meanwhile waits."""
    async with await connect() as conn:
        await conn.request(b"before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange, conn, 200, (40,))
            await anyio.sleep(0.05)
            here("tc qdisc add dev eth0 root netem loss 100%")
            await anyio.sleep(0.2)
            here("tc qdisc del dev eth0 root")
        assert await conn.request(b"after") == b"retfa"


async def test_ends_of_different_mtu_agree_on_the_smaller(ask: Ask) -> None:
    ask("ip link set eth0 mtu 1500; until rdma link | grep -q ACTIVE; do sleep 0.05; done")
    try:
        async with await connect() as conn:
            await exchange(conn, 50, (3_000, 9_000))
    finally:
        ask("ip link set eth0 mtu 4300")


async def test_a_link_that_stays_down_ends_the_connection(ask: Ask) -> None:
    conn = await connect()
    async with aclosing(conn):
        await conn.request(b"before")
        here("ip link set eth0 down")
        try:
            with anyio.fail_after(60), pytest.raises(anyio.BrokenResourceError):
                while True:
                    await conn.request(b"anybody?")
        finally:
            here("ip link set eth0 up; until rdma link | grep -q ACTIVE; do sleep 0.05; done")
    async with await connect() as again:
        assert await again.request(b"again") == b"niaga"
