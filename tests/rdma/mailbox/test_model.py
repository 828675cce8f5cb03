"""The protocol's state machines against two queues; the C scan against a list."""

from __future__ import annotations

import ctypes
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from l5 import native
from l5._frames import HEADER, Kind
from l5._heartbeat import PAYLOAD
from l5.rdma._mailbox import (
    ALIGN,
    CARRIED_MAX,
    SIZE_BYTES,
    Arena,
    NewRow,
    RingReader,
    RingWriter,
    RowSender,
    padded,
    parse_message,
    parse_row,
    row_size,
)

RING, ROW, ROW_MAX, RECEIVES = 4096, 256, 2048, 8
sizes = st.integers(0, 700)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), sizes),
        st.tuples(st.just("tell"), sizes),
        st.tuples(
            st.sampled_from(["take row", "take message", "settle", "read", "carry"]), st.just(0)
        ),
    ),
    max_size=80,
)


class World:
    """Both ends, and the memory between them; each queue holds what was sent and not received."""

    def __init__(self) -> None:
        self.sender = RowSender(ROW)
        self.writer = RingWriter(RING, True, RECEIVES, receives=RECEIVES)
        self.reader = RingReader(RING, RECEIVES, receives=RECEIVES, receives_told=RECEIVES)
        self.row: bytes | None = None
        self.ring = bytearray(RING)
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.said = 0
        self.heard: list[bytes] = []
        self.count = 0

    def payload(self, size: int) -> bytes:
        self.count += 1
        return bytes([self.count % 251 + 1]) * size

    def post_row(self, *, idle: bool = False) -> None:
        if self.sender.free and (self.sender.waiting or idle):
            assert self.row is None, "a row was written over one that had not been taken"
            self.row = self.sender.pack(self.reader.read, self.reader.receives)
            assert len(self.row) <= self.sender.row_bytes
            self.reader.told()

    def ask(self, size: int) -> None:
        if not self.sender.fits(size):
            if size + 36 > self.sender.row_bytes:
                self.sender.want(min(ROW_MAX, size + 100))
                self.post_row(idle=True)
            return
        data = self.payload(size)
        self.sender.add(Kind.DATA, 0, 1, data)
        self.up.append(data)
        self.post_row()

    def put(self, at: int, message: bytes) -> None:
        for i, byte in enumerate(message.ljust(padded(len(message) - SIZE_BYTES - 1), b"\0")):
            assert not self.ring[(at + i) % RING], "a message was written over another one"
            self.ring[(at + i) % RING] = byte

    def tell(self, size: int) -> None:
        if self.writer.fits(size):
            data = self.payload(size)
            self.put(*self.writer.pack((Kind.DATA, 0, 1, data)))
            self.down.append(data)

    def carry(self) -> None:
        self.said += 1
        beat = PAYLOAD.pack(self.said, 0)
        self.writer.carried = HEADER.pack(len(beat), Kind.HEARTBEAT, 0, 0, 0) + beat
        assert len(self.writer.carried) <= CARRIED_MAX

    def settle(self) -> None:
        if self.writer.owes and self.writer.fits(None):
            self.put(*self.writer.pack(None))

    def take_row(self) -> None:
        if self.row is None:
            return
        data, self.row = self.row, None
        size = row_size(data[:SIZE_BYTES], ROW_MAX)
        row = parse_row(data[SIZE_BYTES : SIZE_BYTES + size], ROW_MAX)
        self.writer.learn(row.read, row.receives)
        self.writer.rows += 1
        if row.wanted_bytes:
            self.writer.row = NewRow(4096, 1, row.wanted_bytes)
        for frame in row.frames:
            assert frame[3] == self.up.popleft()

    def take_message(self) -> bool:
        at = self.reader.read % RING
        size = int.from_bytes(self.ring[at : at + SIZE_BYTES], "little")
        if not size:
            return False
        twice = bytes(self.ring) * 2
        message = parse_message(twice[at + SIZE_BYTES : at + SIZE_BYTES + size], RING)
        for i in range(padded(size)):
            self.ring[(at + i) % RING] = 0
        self.reader.read += padded(size)
        self.reader.receives += 1
        self.sender.note_taken(message.rows)
        if message.row is not None:
            self.sender.note_row(message.row)
        for frame in message.frames:
            if frame[0] == Kind.HEARTBEAT:
                self.heard.append(frame[3])
            else:
                assert frame[3] == self.down.popleft()
        self.post_row(idle=self.reader.due)
        return True

    def read(self) -> None:
        self.writer.learn(self.reader.read, self.reader.receives)


@settings(max_examples=150, deadline=None)
@given(moves)
def test_two_ends_are_two_queues(steps: list[tuple[str, int]]) -> None:
    world = World()
    for name, size in steps:
        if name in ("ask", "tell"):
            {"ask": world.ask, "tell": world.tell}[name](size)
        else:
            getattr(world, name.replace(" ", "_"))()
    for _ in range(400):  # without a READ: the client itself has to say how far it is
        world.take_row()
        world.settle()
        world.take_message()
        if not (world.up or world.down) and world.sender.free:
            break
    assert not world.up and not world.down, "the two directions wait for each other"
    assert world.sender.free
    assert world.heard == sorted(world.heard)
    if not world.writer.carried and world.said:
        assert PAYLOAD.unpack(world.heard[-1])[0] == world.said, "the last word was lost"
    # With all read there is room for a quarter of the ring, as is promised to frames.
    assert world.writer.fits(RING // 4 - 128)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 512), st.booleans()), max_size=60))
def test_places_in_use_never_overlap(messages: list[tuple[int, bool]]) -> None:
    arena = Arena(2048, 512)
    used: deque[tuple[int, int, int]] = deque()
    posted = completed = 0
    for length, complete in messages:
        at = arena.place(length)
        if at is None:
            assert used, "an empty arena has room"
        else:
            assert at + length <= arena.size and at % ALIGN == 0
            assert all(at >= end or at + length <= begin for begin, end, _ in used)
            posted += 1
            arena.keep(posted)
            used.append((at, at + length, posted))
        if complete or at is None:
            completed = posted
            arena.release(completed)
            used.clear()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda lines: st.tuples(
            st.just(64 * lines), st.sets(st.integers(0, 64 * lines - 1)), st.integers(1, 70)
        )
    )
)
def test_a_scan_takes_each_flag_once_and_goes_round(given_: tuple[int, set[int], int]) -> None:
    size, flags, most = given_
    memory = ctypes.create_string_buffer(size + 64)
    base = (ctypes.addressof(memory) + 63) & ~63
    spot = native.Spot(0, base, size)
    for place in flags:
        ctypes.c_uint8.from_address(base + place).value = 1
    found: list[int] = []
    while spot.poll():
        start = spot.read
        taken = spot.scan(most)
        assert 0 < len(taken) <= most
        assert taken == sorted(taken, key=lambda place: (place - start) % size)
        found += taken
    assert sorted(found) == sorted(flags)
    assert spot.scan(most) == []
