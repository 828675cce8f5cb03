"""The table and the keys of YCSB-C (Cooper et al., SoCC 2010), as L5 section V measures with it.

Rows have a key of four bytes and ten fields of 100 bytes. Lookups ask for one field of a row, keys
drawn from a Zipf distribution with z = 1; a scan reads the whole table, 128 KiB at a time.
"""

import struct
from itertools import accumulate
from random import Random
from typing import Any

FIELDS = 10
FIELD_BYTES = 100
ROW_BYTES = FIELDS * FIELD_BYTES
BLOCK_ROWS = 128 * 1024 // ROW_BYTES
SCAN = 255
LOOKUP = struct.Struct("<IB")
DRAWN = 1 << 14
"""Keys that are drawn beforehand, and asked for again and again."""
AT_ONCE = 256
"""Lookups between two looks at the clock."""


def keys(rows: int) -> list[int]:
    """Return the keys of the rows: scattered, and the same in every process."""
    return Random(4).sample(range(1 << 31), rows)


def row(key: int) -> bytes:
    """Return the fields of a row, which tell its key."""
    return b"".join(b"%010d-%d" % (key, field) + b"." * 88 for field in range(FIELDS))


def drawn(options: dict[str, Any]) -> list[int]:
    """Return keys as the lookups ask for them."""
    weights = accumulate(1 / rank for rank in range(1, options["rows"] + 1))
    return Random(5).choices(keys(options["rows"]), cum_weights=list(weights), k=DRAWN)


class Turns:
    """Keys in order, without end, `AT_ONCE` at a time."""

    def __init__(self, asked: list[Any]) -> None:
        self._parts = [asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE)]
        self._next = 0

    def take(self) -> list[Any]:
        self._next = (self._next + 1) % len(self._parts)
        return self._parts[self._next]


class WrongRow(Exception):
    """A lookup gave something else than the field that was asked for, or a scan too few rows."""


def check_field(key: int, field: int, value: bytes | str) -> None:
    text = value if isinstance(value, str) else value.decode()
    if text[:12] != f"{key:010d}-{field}" or len(text) != FIELD_BYTES:
        raise WrongRow(f"{text[:20]!r} for key {key}, field {field}")


def check_rows(found: int, options: dict[str, Any]) -> int:
    """Return the bytes of a scan that found so many rows."""
    if found != options["rows"]:
        raise WrongRow(f"a scan found {found} rows of {options['rows']}")
    return found * ROW_BYTES
