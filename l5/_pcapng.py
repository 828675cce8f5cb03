"""Frames as pcapng, which Wireshark reads with our dissector (`l5.lua`); pure.

Link type USER0.  Each packet, little-endian:

    offset  0         1           2       3              4         8            12
            +---------+-----------+-------+--------------+---------+------------+-----------+----
            | version | direction | zero  | name length  | pid u32 | number u32 | transport | ...
            +---------+-----------+-------+--------------+---------+------------+-----------+----

and then the frame: its header of 16 bytes, and the payload up to the snap length.  Direction is 0
for received and 1 for sent; `number` tells the connections of the process apart.
"""

from __future__ import annotations

import struct
from typing import Final

from ._frames import HEADER_BYTES, pack_header

LINKTYPE_USER0: Final = 147
VERSION: Final = 1
_BLOCK: Final = struct.Struct("<II")
_PREFIX: Final = struct.Struct("<BBBBII")
_EPB: Final = struct.Struct("<IIIII")
_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_UNKNOWN_LENGTH = 0xFFFFFFFFFFFFFFFF


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)


def _block(kind: int, body: bytes) -> bytes:
    length = len(body) + 12
    return _BLOCK.pack(kind, length) + body + struct.pack("<I", length)


def beginning(snap_bytes: int, what: str = "") -> bytes:
    """Return the blocks with which a file begins."""
    section = struct.pack("<IHHQ", 0x1A2B3C4D, 1, 0, _UNKNOWN_LENGTH)
    section += _option(4, b"l5") + _option(0, b"")
    longest = snap_bytes + HEADER_BYTES + _PREFIX.size + 255
    interface = struct.pack("<HHI", LINKTYPE_USER0, 0, longest)
    interface += _option(2, what.encode()[:200] or b"l5")
    interface += _option(9, b"\x09") + _option(0, b"")  # time in nanoseconds
    return _block(_SECTION, section) + _block(_INTERFACE, interface)


def packet(
    time_ns: int,
    sent: bool,
    pid: int,
    number: int,
    transport: str,
    frame: tuple[int, int, int, bytes],
    snap_bytes: int,
) -> bytes:
    """Return the block of one frame (kind, flags, id, payload); time is since the epoch."""
    kind, flags, id, payload = frame
    name = transport.encode()[:255]
    head = _PREFIX.pack(VERSION, int(sent), 0, len(name), pid, number & 0xFFFFFFFF) + name
    head += pack_header(len(payload), kind, flags, id)
    data = head + payload[:snap_bytes]
    whole = len(head) + len(payload)
    body = _EPB.pack(0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), whole) + _padded(data)
    body += _option(2, struct.pack("<I", 2 if sent else 1)) + _option(0, b"")
    return _block(_PACKET, body)


def ending(time_ns: int, received: int, dropped: int) -> bytes:
    """Return the block that says how many frames there were, and how many were left out."""
    body = struct.pack("<III", 0, time_ns >> 32, time_ns & 0xFFFFFFFF)
    body += _option(4, struct.pack("<Q", received)) + _option(5, struct.pack("<Q", dropped))
    return _block(_STATISTICS, body + _option(0, b""))
