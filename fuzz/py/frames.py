"""Frame headers in Python and in C: what one takes the other takes; and the payload of ERROR."""

import mmap
import os
from typing import Any

from l5 import native
from l5._errors import RemoteProtocolError
from l5._frames import (
    ERROR_TEXT_MAX,
    HEADER,
    HEADER_BYTES,
    Header,
    check_header,
    pack_error,
    pack_header,
    parse_error,
    parse_header,
)

LIMIT = 4096
RING = 1 << 16


class WrittenByHand:
    """A ring of ours, and the memory in which its peer writes: one frame at a time."""

    def __init__(self) -> None:
        fd = native.lib.l5_segment_create(RING)
        if fd < 0:
            raise OSError(-fd, os.strerror(-fd))
        self.ring: Any = native.Ring(
            fd=fd, ring_bytes=RING, server=True, bell=-1,
            send_limit=LIMIT, receive_limit=LIMIT, seal=False,
        )  # fmt: skip
        self.memory = mmap.mmap(fd, mmap.PAGESIZE + 2 * RING)
        os.close(fd)
        self.position = 0

    def takes(self, head: bytes, size_bytes: int) -> tuple[int, int, int, int] | None:
        """Return what the C makes of a header: kind, flags, id, size; or None."""
        at = mmap.PAGESIZE + self.position % RING
        self.memory[at + 8 : at + 24] = head
        self.memory[at : at + 8] = (size_bytes + HEADER_BYTES).to_bytes(8, "little")
        try:
            kind, flags, id, payload = self.ring.try_receive()
        except RemoteProtocolError as error:
            assert str(error)
            self.memory[at : at + 24] = bytes(24)
            return None
        self.position += (24 + len(payload) + 63) // 64 * 64
        if self.position % RING > RING - 2 * LIMIT:  # what would cross the end comes next time
            self.close()
            self.__init__()
        return kind, flags, id, len(payload)

    def close(self) -> None:
        self.ring.close()
        self.memory.close()


_by_hand: list[WrittenByHand] = []


def _c() -> WrittenByHand:
    if not _by_hand:
        _by_hand.append(WrittenByHand())
    return _by_hand[0]


def close() -> None:
    """Give the ring back, for tests that count descriptors."""
    while _by_hand:
        _by_hand.pop().close()


def one_input(data: bytes) -> None:
    head = data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0")
    size, kind, flags, reserved, id = HEADER.unpack(head)
    try:
        check_header(size, kind, flags, LIMIT)
        sound = True
    except RemoteProtocolError as error:
        assert str(error)
        sound = False
    if native.available:
        taken = _c().takes(head, size)
        assert (taken is not None) is sound, (head, taken)
        assert taken is None or taken == (kind, flags, id, size)
    try:
        header: Header | None = parse_header(data, 0, LIMIT) if len(data) >= 16 else None
    except RemoteProtocolError:
        assert reserved or not sound
    else:
        if header is not None:
            assert sound and pack_header(*header) == head
    _error_payload(data[HEADER_BYTES:])


def _error_payload(payload: bytes) -> None:
    try:
        name, message = parse_error(payload)
    except RemoteProtocolError as error:
        assert str(error)
        return
    again = parse_error(pack_error(name, message))
    if max(len(name.encode()), len(message.encode())) <= ERROR_TEXT_MAX:
        assert again == (name, message)
