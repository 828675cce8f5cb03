"""Frames over stream sockets: splitting, partial writes, hostile headers, the two ends."""

import os
import socket
import struct
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l5._errors import MessageTooLarge, RemoteProtocolError
from l5._frames import HEADER_BYTES, Flag, Kind, pack_header, parse_header
from l5.abc import Channel, Frame
from l5.transports._stream import StreamChannel
from tests.transports._support import LIMIT, channels, raw_pair, receive, refused

KINDS_OF_CHANNEL = ("tcp", "unix", "inproc")
every_kind = pytest.mark.parametrize("kind", KINDS_OF_CHANNEL)


def frame(payload: bytes, kind: int = Kind.DATA, flags: int = 0, id: int = 0) -> bytes:
    return pack_header(len(payload), kind, flags, id) + payload


@every_kind
@pytest.mark.anyio
@pytest.mark.parametrize("size", [0, 1, 63, 64, LIMIT - 1, LIMIT])
async def test_sizes_kinds_and_ids(kind: str, size: int, tmp_path: Path) -> None:
    async with channels(kind, tmp_path) as (near, far):
        payload = os.urandom(size)
        for view in (payload, bytearray(payload), memoryview(payload)):
            assert near.try_send(Kind.REQUEST, Flag.MORE, 2**64 - 1, view)
            got = await receive(far)
            assert got == Frame(Kind.REQUEST, Flag.MORE, 2**64 - 1, payload)
            assert type(got) is Frame
            assert type(got.payload) is bytes


@every_kind
@pytest.mark.anyio
async def test_a_buffer_of_wide_items_is_sent_by_its_bytes(kind: str, tmp_path: Path) -> None:
    numbers = memoryview(struct.pack("<4q", 1, 2, 3, 4)).cast("q")
    async with channels(kind, tmp_path) as (near, far):
        near.try_send(Kind.DATA, 0, 0, numbers)
        assert (await receive(far)).payload == bytes(numbers)


@every_kind
@pytest.mark.anyio
async def test_the_caller_may_reuse_its_buffer(kind: str, tmp_path: Path) -> None:
    async with channels(kind, tmp_path, limit=3_000_000) as (near, far):
        buffer = bytearray(b"a" * 3_000_000)
        assert near.try_send(Kind.DATA, 0, 1, buffer)
        buffer[:] = b"b" * 3_000_000
        async with anyio.create_task_group() as group:
            group.start_soon(drain, near)
            assert set((await receive(far)).payload) == {ord("a")}


async def drain(channel: Channel) -> None:
    while channel.wants_write:
        await anyio.wait_writable(channel.fileno())
        channel.flush()


@every_kind
@pytest.mark.anyio
async def test_too_large_a_frame_is_not_sent(kind: str, tmp_path: Path) -> None:
    async with channels(kind, tmp_path) as (near, far):
        with pytest.raises(MessageTooLarge):
            near.try_send(Kind.DATA, 0, 0, bytes(LIMIT + 1))
        assert near.try_send(Kind.DATA, 0, 0, b"after")
        assert (await receive(far)).payload == b"after"


@every_kind
@pytest.mark.anyio
@pytest.mark.parametrize("limit", [LIMIT, 20_000, 300_000])
async def test_order_both_directions_and_back_pressure(
    kind: str, limit: int, tmp_path: Path
) -> None:
    sizes = [(i * 7919) % (limit + 1) for i in range(60)]
    async with channels(kind, tmp_path, limit=limit) as (near, far):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(exchange, near, sizes)
                group.start_soon(exchange, far, sizes)


async def exchange(channel: Channel, sizes: list[int]) -> None:
    """Send frames of all sizes and check those that the other end sends, both at once."""
    sent = received = 0
    while sent < len(sizes) or received < len(sizes) or channel.wants_write:
        while sent < len(sizes) and channel.try_send(
            Kind.DATA, 0, sent, bytes([sent]) * sizes[sent]
        ):
            sent += 1
        while (got := channel.try_receive()) is not None:
            assert (got.id, got.payload) == (received, bytes([received]) * sizes[received])
            received += 1
        if channel.wants_write:
            with anyio.move_on_after(0.01):
                await anyio.wait_writable(channel.fileno())
            channel.flush()
        elif received < len(sizes) and channel.arm(space=sent < len(sizes)):
            await anyio.wait_readable(channel.fileno())
            channel.disarm()
            channel.on_event()


@every_kind
@pytest.mark.anyio
async def test_a_peer_that_does_not_read_costs_little(kind: str, tmp_path: Path) -> None:
    async with channels(kind, tmp_path) as (near, far):
        sent = 0
        while near.try_send(Kind.DATA, 0, sent, bytes(LIMIT)):
            sent += 1
            assert sent < 10_000
        assert near.wants_write or near.arm(space=True)
        assert not near.try_send(Kind.DATA, 0, sent, bytes(LIMIT))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(drain, near)
                for number in range(sent):
                    assert (await receive(far)).id == number
        assert near.try_send(Kind.DATA, 0, 0, b"room again")


@every_kind
@pytest.mark.anyio
async def test_the_end_comes_after_everything_sent(kind: str, tmp_path: Path) -> None:
    async with channels(kind, tmp_path) as (near, far):
        for number in range(5):
            near.try_send(Kind.DATA, 0, number, b"x")
        near.close()
        near.close()
        for number in range(5):
            assert (await receive(far)).id == number
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await receive(far)
        with pytest.raises(anyio.BrokenResourceError):
            for _ in range(100):
                far.try_send(Kind.DATA, 0, 0, b"to nobody")
        with pytest.raises(anyio.ClosedResourceError):
            near.try_send(Kind.DATA, 0, 0, b"")
        with pytest.raises(anyio.ClosedResourceError):
            near.try_receive()


@every_kind
@pytest.mark.anyio
async def test_arm_refuses_while_a_frame_is_there(kind: str, tmp_path: Path) -> None:
    async with channels(kind, tmp_path) as (near, far):
        assert far.arm()
        assert not far.poll()
        near.try_send(Kind.DATA, 0, 1, b"x")
        near.try_send(Kind.DATA, 0, 2, b"y")
        assert (await receive(far)).id == 1
        assert far.poll()
        assert not far.arm()
        assert not far.arm(space=True)
        assert (await receive(far)).id == 2
        assert far.arm()
        assert not far.arm(space=True)


def test_frames_split_at_every_byte() -> None:
    stream = frame(b"first", id=1) + frame(b"", Kind.CANCEL, id=2) + frame(b"x" * 100, id=3)
    for cut in range(len(stream) + 1):
        raw, channel = raw_pair()
        got: list[int] = []
        for part in (stream[:cut], stream[cut:]):
            raw.sendall(part)
            channel.on_event()
            while (one := channel.try_receive()) is not None:
                got.append(one.id)
        assert got == [1, 2, 3], cut
        raw.close()
        channel.close()


def test_frames_byte_by_byte() -> None:
    raw, channel = raw_pair()
    got: list[Frame] = []
    for byte in frame(b"first", id=1) + frame(b"second", id=2):
        raw.sendall(bytes([byte]))
        assert not channel.poll()
        one = channel.try_receive()
        if one is not None:
            got.append(one)
            assert channel.try_receive() is None
    assert [one.payload for one in got] == [b"first", b"second"]
    raw.close()
    channel.close()


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40_000), max_size=12),
    cuts=st.lists(st.integers(1, 30_000), min_size=1, max_size=12),
)
def test_any_split_of_any_frames(sizes: list[int], cuts: list[int]) -> None:
    raw, channel = raw_pair(limit=40_000)
    stream = b"".join(frame(bytes([n]) * size, id=n) for n, size in enumerate(sizes))
    got: list[Frame] = []
    position = turn = 0
    while position < len(stream):
        cut = cuts[turn % len(cuts)]
        raw.sendall(stream[position : position + cut])
        position += cut
        turn += 1
        channel.on_event()
        while (one := channel.try_receive()) is not None:
            got.append(one)
    assert [(one.id, one.payload) for one in got] == [
        (n, bytes([n]) * size) for n, size in enumerate(sizes)
    ]
    raw.close()
    channel.close()


@pytest.mark.parametrize("cut", range(1, HEADER_BYTES + 4))
def test_end_in_the_middle_of_a_frame(cut: int) -> None:
    raw, channel = raw_pair()
    raw.sendall(frame(b"whole") + frame(b"half")[:cut])
    raw.close()
    got = channel.try_receive()
    assert got is not None
    assert got.payload == b"whole"
    channel.on_event()
    with pytest.raises(anyio.BrokenResourceError, match="in the middle of a frame"):
        channel.try_receive()
    channel.close()


def test_a_reset_is_a_broken_resource() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    accepted.setblocking(False)
    channel = StreamChannel(accepted, "tcp", send_limit=LIMIT, receive_limit=LIMIT)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(anyio.BrokenResourceError):
        channel.try_receive()
    with pytest.raises(anyio.BrokenResourceError):
        channel.try_send(Kind.DATA, 0, 0, b"x")
    channel.close()
    server.close()


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (struct.pack("<IBBHQ", 0, 0, 0, 0, 0), "unknown kind 0"),
        (struct.pack("<IBBHQ", 0, 200, 0, 0, 0), "unknown kind 200"),
        (struct.pack("<IBBHQ", 0, Kind.DATA, 0x80, 0, 0), "flags 0x80"),
        (struct.pack("<IBBHQ", 0, Kind.DATA, Flag.DEADLINE, 0, 0), "flags 0x02"),
        (struct.pack("<IBBHQ", 0, Kind.DATA, 0, 7, 0), "reserved bits 0x0007"),
        (struct.pack("<IBBHQ", LIMIT + 1, Kind.DATA, 0, 0, 0), "4097 bytes where 4096"),
        (struct.pack("<IBBHQ", 2**32 - 1, Kind.DATA, 0, 0, 0), "4294967295 bytes"),
        (struct.pack("<IBBHQ", 1, Kind.CANCEL, 0, 0, 0), "CANCEL frame of 1 bytes"),
        (struct.pack("<IBBHQ", 3, Kind.REQUEST, Flag.DEADLINE, 0, 0), "too short for its deadline"),
    ],
)
def test_hostile_headers(header: bytes, match: str) -> None:
    raw, channel = raw_pair()
    raw.sendall(frame(b"good") + header)
    assert channel.try_receive() is not None
    channel.on_event()
    refused(channel, match)
    refused(channel, match)
    assert len(channel._buffer) <= LIMIT + HEADER_BYTES
    raw.close()
    channel.close()


def test_the_fast_check_agrees_with_the_slow_one() -> None:
    raw, channel = raw_pair(limit=64)
    for kind in range(12):
        for flags in range(256):
            for size in (0, 3, 4, 5, 8, 12, 64, 65):
                header = pack_header(size, kind, flags, 9)
                try:
                    parse_header(header, 0, 64)
                    sound = True
                except RemoteProtocolError:
                    sound = False
                probe = StreamChannel(raw, "unix", send_limit=64, receive_limit=64)
                probe._view[:HEADER_BYTES] = header
                probe._end = HEADER_BYTES + min(size, 64)
                if sound:
                    assert probe.try_receive() == (kind, flags, 9, bytes(size))
                else:
                    with pytest.raises(RemoteProtocolError):
                        probe.try_receive()
    raw.close()
    channel.close()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_only_an_end_or_a_protocol_error_comes_out_of_garbage(garbage: bytes) -> None:
    raw, channel = raw_pair(limit=64)
    raw.sendall(garbage)
    raw.close()
    try:
        for _ in range(100):
            channel.on_event()
            channel.try_receive()
    except (RemoteProtocolError, anyio.EndOfStream, anyio.BrokenResourceError):
        pass
    else:
        pytest.fail("neither an end nor an error")
    finally:
        channel.close()


def test_partial_writes_keep_the_rest_and_nothing_more() -> None:
    raw, channel = raw_pair(limit=500_000)
    channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    first = os.urandom(500_000)
    assert channel.try_send(Kind.DATA, 0, 1, first)
    assert channel.wants_write
    assert not channel.flush()
    assert not channel.try_send(Kind.DATA, 0, 2, b"no room")
    received = bytearray()
    while channel.wants_write:
        received += raw.recv(10_000)
        channel.flush()
    raw.setblocking(False)
    while True:
        try:
            received += raw.recv(100_000)
        except BlockingIOError:
            break
    assert received == frame(first, id=1)
    assert channel.try_send(Kind.DATA, 0, 2, b"room")
    raw.setblocking(True)
    assert raw.recv(100) == frame(b"room", id=2)
    raw.close()
    channel.close()


def test_what_was_read_short_costs_no_second_read() -> None:
    raw, channel = raw_pair()
    reads: list[int] = []
    original = channel._recv_into

    def counted(buffer: memoryview) -> int:
        reads.append(len(buffer))
        return original(buffer)

    channel._recv_into = counted
    raw.sendall(b"".join(frame(b"x", id=n) for n in range(10)))
    channel.on_event()
    ids = []
    while (one := channel.try_receive()) is not None:
        ids.append(one.id)
    assert ids == list(range(10))
    assert len(reads) == 1
    raw.sendall(frame(b"y"))
    assert channel.try_receive() is not None  # without an event, too
    raw.close()
    channel.close()


def test_an_idle_channel_holds_a_small_buffer() -> None:
    raw, channel = raw_pair(limit=1_000_000)
    assert len(channel._buffer) <= 16 * 1024
    raw.sendall(frame(bytes(100_000)))
    got = channel.try_receive()
    while got is None:
        got = channel.try_receive()
    assert len(got.payload) == 100_000
    raw.close()
    channel.close()
