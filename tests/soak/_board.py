"""The board: a file in memory in which every process of a soak notes what it waits for.

It survives whatever becomes of a process, so the referee can say who waits for whom even of one
that was killed, is stopped, or hangs in C. A slot has lanes, one for each thing that is being
waited for, and counters.

    page 0       bytes: 0 run, 1 clients come to an end, 2 servers too; 1 all are up; 1 an alarm
    page 1 + i   slot i: counters (messages, bytes, connections, cancelled), a byte: 1 it has begun,
                 then lanes of 120 bytes
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = mmap.PAGESIZE
LANE = struct.Struct("<d112s")  # since when (0: nothing), for what
COUNTS = struct.Struct("<4Q")
BEGUN_AT = COUNTS.size
LANES_AT = 64
LANES = (4096 - LANES_AT) // LANE.size
COUNTED = ("messages", "bytes", "connections", "cancelled")


class Board:
    """A view of the board; a process notes things in its own slot only."""

    def __init__(self, path: Path, slots: int, own: int = 0) -> None:
        size = PAGE * (slots + 1)
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._at = PAGE * (own + 1)
        self._free = list(range(LANES))
        self._counts = dict.fromkeys(COUNTED, 0)

    @property
    def begun(self) -> bool:
        """Tell whether all processes are up."""
        return self._map[1] == 1

    def go(self) -> None:
        """Let the clients begin."""
        self._map[1] = 1

    @property
    def alarmed(self) -> bool:
        """Tell whether a process has found something wrong."""
        return self._map[2] == 1

    def alarm(self) -> None:
        """Tell the referee that something is wrong."""
        self._map[2] = 1

    @property
    def finishing(self) -> bool:
        """Tell whether clients have been asked to come to an end."""
        return self._map[0] >= 1

    @property
    def closing(self) -> bool:
        """Tell whether servers have been asked to come to an end."""
        return self._map[0] >= 2

    def tell(self, flag: int) -> None:
        """Ask clients (1), or servers too (2), to come to an end."""
        self._map[0] = flag

    def begin(self) -> None:
        """(A new process in this slot) forget what the one before it waited for."""
        self._map[self._at : self._at + PAGE] = bytes(PAGE)
        self._map[self._at + BEGUN_AT] = 1

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Note that something is being waited for."""
        if not self._free:
            yield
            return
        lane = self._free.pop()
        at = self._at + LANES_AT + lane * LANE.size
        LANE.pack_into(self._map, at, time.monotonic(), what.encode()[:112])
        try:
            yield
        finally:
            LANE.pack_into(self._map, at, 0.0, b"")
            self._free.append(lane)

    def count(self, **added: int) -> None:
        """Add to the counters of the own slot."""
        for name, number in added.items():
            self._counts[name] += number
        COUNTS.pack_into(self._map, self._at, *self._counts.values())

    # ---- the referee's side ----------------------------------------------------------------------

    def waits(self, slot: int) -> list[tuple[float, str]]:
        """Return what a slot's process waits for: since when, and for what; the oldest first."""
        at = PAGE * (slot + 1) + LANES_AT
        found = (LANE.unpack_from(self._map, at + lane * LANE.size) for lane in range(LANES))
        return sorted((since, text.rstrip(b"\0").decode()) for since, text in found if since)

    def has_begun(self, slot: int) -> bool:
        """Tell whether a slot's process has come as far as its first line."""
        return self._map[PAGE * (slot + 1) + BEGUN_AT] == 1

    def clear(self, slot: int) -> None:
        """Forget what a slot's process counted and waited for: it is dead."""
        self._map[PAGE * (slot + 1) : PAGE * (slot + 2)] = bytes(PAGE)

    def counts(self, slot: int) -> dict[str, int]:
        """Return the counters of a slot's present process."""
        return dict(zip(COUNTED, COUNTS.unpack_from(self._map, PAGE * (slot + 1)), strict=True))
