"""When a simulated fabric does what: at once, by a seed, or in every order there is.

A plan is asked three things: which of the steps that are possible now is next, into which pieces
a write's bytes fall on their way into memory, and whether to pause. What is *possible* is the
fabric's business, so that no plan can break what RDMA promises.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from ._simulated_fabric import Fabric

PIECES_MAX = 4
PAUSE_S = 0.0002
ORDERS_MAX = 1_000_000


class Plan:
    """Kind: all that can happen happens at once, in order, within the call that asked for it."""

    immediate = True  # steps are done within the call
    manual = False  # steps are done by Fabric.step alone
    # A write's pieces land front to back, and writes one after the other: how reliable connections
    # behave on all hardware known, which no standard promises.
    ordered = True

    def choose(self, count: int) -> int:
        """Choose one of `count` steps."""
        return 0

    def touches(self) -> int:
        """Say how many steps a call from outside does in passing."""
        return 0

    def cuts(self, address: int, length: int) -> list[int]:
        """Cut what lands at `address` into pieces: their lengths, front to back.

        The last byte always lands alone: a copy's own order within a piece is anybody's guess.
        """
        return [length - 1, 1] if length > 1 else [length]

    def pause(self) -> None:
        """Wait between two bursts of steps."""


kind = Plan


class Hostile(Plan):
    """Everything late, torn, and in any order that is permitted, by a seed."""

    immediate = False

    def __init__(self, seed: int, *, ordered: bool = True) -> None:
        self.ordered = ordered
        self._random = random.Random(seed)

    def choose(self, count: int) -> int:
        """Choose at random."""
        return self._random.randrange(count) if count > 1 else 0

    def touches(self) -> int:
        """Do none to six steps."""
        return self._random.randrange(7)

    def cuts(self, address: int, length: int) -> list[int]:
        """Cut at multiples of eight: no more than an aligned word lands whole for certain."""
        if length <= 1:
            return [length]
        first = -address % 8 or 8
        places = range(first, length - 1, 8)
        chosen = self._random.sample(places, min(len(places), self._random.randrange(PIECES_MAX)))
        edges = [0, *sorted(chosen), length - 1, length]
        return [end - start for start, end in itertools.pairwise(edges)]

    def pause(self) -> None:
        """Sleep for a moment, so that others come to run, at times longer."""
        time.sleep(self._random.random() * PAUSE_S)


def hostile(seed: int, *, ordered: bool = True) -> Plan:
    """Return a plan that does what is permitted and inconvenient.

    With `ordered` false, a write's bytes and successive writes become visible in any order, until a
    receive's completion says that they are there: what the standard promises, and no more.
    """
    return Hostile(seed, ordered=ordered)


@attrs.define(eq=False)
class Enumerated(Plan):
    """One path through all choices; `explore` makes them all.

    A write is cut at each multiple of `cut_bytes`, and before its last byte.
    """

    immediate = False
    manual = True

    path: list[int]
    ordered: bool = True
    cut_bytes: int = 8
    widths: list[int] = attrs.field(factory=list[int], init=False)

    def choose(self, count: int) -> int:
        """Follow the path, and take the first choice where it ends."""
        depth = len(self.widths)
        self.widths.append(count)
        if depth == len(self.path):
            self.path.append(0)
        return self.path[depth]

    def cuts(self, address: int, length: int) -> list[int]:
        """Cut at multiples of `cut_bytes`, and before the last byte."""
        if length <= 1:
            return [length]
        first = -address % self.cut_bytes or self.cut_bytes
        edges = [0, *range(first, length - 1, self.cut_bytes), length - 1, length]
        return [end - start for start, end in itertools.pairwise(edges)]


def explore(scenario: Callable[[Fabric], None], *, ordered: bool = True, cut_bytes: int = 8) -> int:
    """Run `scenario` once for every order of deliveries; return how many there were.

    The scenario gets a fresh fabric, on which nothing happens but by ``fabric.step()``; what it
    does between two steps sees one state of the memory. It must do the same thing each time.

    :raises RuntimeError: there are more than a million orders; make the messages smaller.
    """
    from ._simulated_fabric import Fabric

    path: list[int] = []
    for count in range(1, ORDERS_MAX + 1):
        plan = Enumerated(path, ordered, cut_bytes)
        scenario(Fabric(plan))
        del path[len(plan.widths) :]
        while path and path[-1] + 1 == plan.widths[len(path) - 1]:
            path.pop()
        if not path:
            return count
        path[-1] += 1
    raise RuntimeError(f"more than {ORDERS_MAX} orders")
