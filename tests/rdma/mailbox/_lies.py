"""Rows and messages that an honest end never writes."""

from __future__ import annotations

import struct

from l5._frames import HEADER, Kind


def row(frames: bytes, read: int = 0, receives: int = 128, wanted: int = 0) -> bytes:
    body = struct.pack("<QII", read, receives, wanted) + frames
    return struct.pack("<I", len(body)) + body


FRAME = HEADER.pack(3, Kind.REQUEST, 0, 0, 1) + b"abc"
ATTACKS = {
    "a flag over nothing": b"",
    "a size too small": struct.pack("<I", 5),
    "a size beyond the row": struct.pack("<I", 4093),
    "the largest size": b"\xff" * 4,
    "a kind that is none": row(HEADER.pack(0, 77, 0, 0, 1)),
    "half a header": row(FRAME + b"\1\2\3"),
    "a frame beyond its row": row(HEADER.pack(500, Kind.REQUEST, 0, 0, 1)),
    "a read position in the future": row(FRAME, read=64),
    "more receives than it has": row(FRAME, receives=129),
    "a smaller row": row(FRAME, wanted=100),
}

SERVER_ATTACKS = {
    "an impossible size": struct.pack("<I", 1 << 30),
    "rows that were never sent": struct.pack("<III", 8, 5, 0) + b"\x4f",
    "an extra that is none": struct.pack("<III", 8, 0, 9) + b"\x4f",
    "a row that nobody asked for": struct.pack("<IIIQII", 24, 0, 1, 64, 1, 4096) + b"\x4f",
    "half a header": struct.pack("<III", 12, 0, 0) + bytes(4) + b"\x4f",
}
