"""Walks over a fabric that promises no order of words: a node's version is read before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pytest

from catfish_app import RTree
from catfish_app._direct import WalkedTree
from catfish_app._kernels import lib

pytestmark = pytest.mark.anyio
Take = Callable[[int, bytes], Iterable[tuple[int, int]] | None]
LINE = 64


class Fabric:
    """The tree's own memory, whose nodes arrive with their payload first and their versions last.

    Between the two a writer acts, once.
    """

    def __init__(self, tree: RTree, *, in_order: bool, write: Callable[[], object]) -> None:
        self.in_order = in_order
        self._write = write
        assert tree.region is not None
        self._memory = tree.region.view
        self.size_bytes = len(self._memory)
        self.head = bytes(self._memory[: lib.RT_REMOTE_HEAD_BYTES])
        self.pages = 0

    async def read_each(
        self, spans: Iterable[tuple[int, int]], take: Take, *, window: int = 16
    ) -> None:
        todo = list(spans)
        while todo:
            offset, length = todo.pop(0)
            todo += take(offset, self._read(offset, length)) or []

    def _read(self, offset: int, length: int) -> bytes:
        data = bytearray(self._memory[offset : offset + length])
        if length == lib.RT_NODE_BYTES:
            self.pages += 1
            if self.pages == 1:
                self._write()
            for line in range(0, length, LINE):
                data[line : line + 4] = self._memory[offset + line : offset + line + 4]
            data[:8] = self._memory[offset : offset + 8]
        return bytes(data)


async def found(in_order: bool) -> tuple[list[int], dict[str, int]]:
    """Search a tree of one leaf; amid the copying of that leaf, an entry goes."""
    tree = RTree(1000, shared=True)
    for number in range(8):
        tree.insert(number, 0.0, number + 0.5, 0.5, number)

    def write() -> None:
        assert tree.delete(3.0, 0.0, 3.5, 0.5, 3)

    region = Fabric(tree, in_order=in_order, write=write)
    walked = WalkedTree(cast(Any, region), region.head)
    ids = await walked.search((-1.0, -1.0, 9.0, 9.0))
    return np.sort(ids).tolist(), walked.counts


async def test_a_version_is_read_before_its_node() -> None:
    ids, counts = await found(in_order=False)
    assert ids == [0, 1, 2, 4, 5, 6, 7]
    assert counts["torn"] == 1


async def test_without_that_a_mixture_would_pass() -> None:
    """So the test above can fail: words of before the deletion, under the version of after it."""
    ids, counts = await found(in_order=True)
    assert ids != [0, 1, 2, 4, 5, 6, 7]
    assert counts["torn"] == 0
