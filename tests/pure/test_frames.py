"""The frame header: round trips, fuzz, and that Python and C have one table of rules."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l5 import native
from l5._errors import RemoteProtocolError
from l5._frames import (
    DEADLINE,
    ERROR_TEXT_MAX,
    HEADER,
    HEADER_BYTES,
    ID_MAX,
    Flag,
    Kind,
    check_header,
    pack_error,
    pack_header,
    parse_error,
    parse_header,
)
from l5.transports._stream import StreamChannel

LIMIT = 4096


def verdict(size: int, kind: int, flags: int) -> bool:
    try:
        check_header(size, kind, flags, LIMIT)
    except RemoteProtocolError:
        return False
    return True


def test_the_table() -> None:
    good = [
        (0, Kind.DATA, 0),
        (LIMIT, Kind.DATA, Flag.MORE),
        (4, Kind.REQUEST, Flag.DEADLINE),
        (4, Kind.REQUEST, Flag.DEADLINE | Flag.MORE),
        (8, Kind.CREDIT, Flag.FOR_RESPONSE),
        (12, Kind.HEARTBEAT, 0),
        (0, Kind.CLOSE, Flag.MORE),
    ]
    bad = [
        (0, 0, 0),
        (0, 10, 0),
        (0, 255, 0),
        (LIMIT + 1, Kind.DATA, 0),
        (0, Kind.DATA, Flag.DEADLINE),
        (0, Kind.DATA, 8),
        (3, Kind.REQUEST, Flag.DEADLINE),
        (1, Kind.CANCEL, 0),
        (7, Kind.CREDIT, 0),
        (0, Kind.ERROR, Flag.MORE),
        (1, Kind.ABORT, 0),
    ]
    assert all(verdict(*case) for case in good)
    assert not any(verdict(*case) for case in bad)


@given(
    size=st.integers(0, LIMIT),
    kind=st.sampled_from(Kind),
    flags=st.integers(0, 7),
    id=st.integers(0, ID_MAX),
    offset=st.integers(0, 3),
)
def test_round_trip(size: int, kind: Kind, flags: int, id: int, offset: int) -> None:
    data = bytes(offset) + pack_header(size, kind, flags, id)
    if not verdict(size, kind, flags):
        with pytest.raises(RemoteProtocolError):
            parse_header(data, offset, LIMIT)
        return
    header = parse_header(data, offset, LIMIT)
    assert header == (size, kind, flags, id)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_sixteen_bytes(data: bytes) -> None:
    """They are a header that packs to the same bytes, or a `RemoteProtocolError`."""
    try:
        header = parse_header(data, 0, LIMIT)
    except RemoteProtocolError as error:
        assert str(error)
    else:
        assert pack_header(header.size_bytes, header.kind, header.flags, header.id) == data


@given(name=st.text(max_size=6000), message=st.text(max_size=6000))
def test_errors_round_trip(name: str, message: str) -> None:
    payload = pack_error(name, message)
    got_name, got_message = parse_error(payload)
    if len(name.encode("utf-8", "replace")) <= ERROR_TEXT_MAX:
        assert got_name == name.encode("utf-8", "replace").decode()
    if len(message.encode("utf-8", "replace")) <= ERROR_TEXT_MAX:
        assert got_message == message.encode("utf-8", "replace").decode()
    assert len(payload) <= 2 + 2 * ERROR_TEXT_MAX


@given(st.binary(max_size=20) | st.binary(min_size=4000, max_size=9000))
def test_any_error_payload(payload: bytes) -> None:
    try:
        parse_error(payload)
    except RemoteProtocolError as error:
        assert str(error)


# ---- what C and the stream channel make of it --------------------------------------------------


@contextmanager
def written_by_hand() -> Iterator[tuple[Any, Any]]:
    """A ring of ours, and the memory in which its peer writes."""
    import mmap

    fd = native.lib.l5_segment_create(1 << 16)
    assert fd >= 0
    ours = native.Ring(
        fd=fd,
        ring_bytes=1 << 16,
        server=True,
        bell=-1,
        send_limit=LIMIT,
        receive_limit=LIMIT,
        seal=False,
    )
    memory = mmap.mmap(fd, mmap.PAGESIZE + (2 << 16))
    os.close(fd)
    try:
        yield ours, memoryview(memory)[mmap.PAGESIZE :]
    finally:
        ours.close()


@pytest.mark.skipif(not native.available, reason=native.reason)
def test_c_has_the_same_table() -> None:
    sizes = [0, 1, 3, 4, 7, 8, 9, 12, 13, LIMIT, LIMIT + 1]
    for kind in [*range(12), 127, 255]:
        for flags in [*range(9), 16, 128, 255]:
            with written_by_hand() as (ring, memory):
                for size in sizes:
                    memory[8:24] = pack_header(size, kind, flags, 7)
                    memory[:8] = (size + HEADER_BYTES).to_bytes(8, "little")
                    try:
                        frame = ring.try_receive()
                    except RemoteProtocolError:
                        taken = False
                    else:
                        assert frame[:3] == (kind, flags, 7)
                        taken = True
                    assert taken is verdict(size, kind, flags), (kind, flags, size)
                    if taken:
                        break  # the ring has moved on
                for size in sizes:
                    if verdict(size, kind, flags):
                        break


def _accepted_by_stream(size: int, kind: int, flags: int) -> bool:
    near, far = socket.socketpair()
    near.setblocking(False)
    channel = StreamChannel(near, "unix", send_limit=LIMIT, receive_limit=LIMIT)
    with far:
        far.sendall(pack_header(size, kind, flags, 7) + bytes(min(size, LIMIT)))
        try:
            frame = channel.try_receive()
        except RemoteProtocolError:
            return False
        finally:
            channel.close()
        assert frame is not None
        assert frame[:3] == (kind, flags, 7)
        return True


@settings(deadline=None, max_examples=300)
@given(
    size=st.sampled_from([0, 1, 3, 4, 8, 12, LIMIT, LIMIT + 1]),
    kind=st.integers(0, 11),
    flags=st.integers(0, 15),
)
def test_the_stream_channel_has_the_same_table(size: int, kind: int, flags: int) -> None:
    assert _accepted_by_stream(size, kind, flags) is verdict(size, kind, flags)


def test_reserved_bits_are_refused_on_streams() -> None:
    near, far = socket.socketpair()
    channel = StreamChannel(near, "unix", send_limit=LIMIT, receive_limit=LIMIT)
    with far:
        far.sendall(HEADER.pack(0, Kind.DATA, 0, 1, 7))
        with pytest.raises(RemoteProtocolError, match="reserved"):
            channel.try_receive()
    channel.close()
    assert DEADLINE.size == 4
    assert issubclass(anyio.EndOfStream, Exception)
