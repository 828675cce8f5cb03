"""What a window of a tree looks like: rectangles where they are few, else a picture of them.

Whatever the tree holds, an answer has at most `BOXES_MAX` boxes or `SIDE_MAX` squared cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from catfish_app._kernels import ffi, lib
from catfish_app._rtree import Floats, Ids, RTree

BOXES_MAX = 6000
SIDE_MAX = 1024
LEVELS_MAX = 16
TABLE_MAX = 1 << 16
"""Counts up to this are looked up, ten times as fast as logarithms."""
WORLD = (-np.inf, -np.inf, np.inf, np.inf)

Window = tuple[float, float, float, float]


@attrs.frozen(eq=False)
class Boxes:
    """Boxes that meet a window; `more`: there are more of them than these."""

    rects: Floats
    ids: Ids
    more: bool


@attrs.frozen(eq=False)
class Picture:
    """How many entries cover each cell, as shades from 0 (none) to 255 (`most` of them).

    Shades are logarithmic. Row 0 is the lowest.
    """

    shades: npt.NDArray[np.uint8]
    most: int
    total: int
    """Entries that meet the window."""


def parse_window(values: Sequence[str | None]) -> Window:
    """Read the four sides of a window; raises ValueError."""
    try:
        x0, y0, x1, y1 = (float(value or "") for value in values)
    except ValueError:
        raise ValueError("a window is four numbers: x0, y0, x1, y1") from None
    window = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
    if not all(np.isfinite(window)):
        raise ValueError("the sides of a window must be finite")
    return window


def boxes(tree: RTree, level: int, window: Sequence[float], most: int = BOXES_MAX) -> Boxes:
    """Return the boxes of a level that meet a window: 0 the entries, 1 the leaves, and so on.

    Raises IndexError when there is no such level.
    """
    rects, ids = np.empty((most, 4)), np.empty(most, np.uint64)
    total = ffi.new("size_t *")
    error = lib.rt_view_boxes(
        tree._handle,
        level,
        ffi.new("double[4]", list(window)),
        ffi.cast("double *", rects.ctypes.data),
        ffi.cast("uint64_t *", ids.ctypes.data),
        most,
        total,
    )
    if error:
        raise IndexError(f"level is {level}; there are {tree.stats(walk=False).height} above 0")
    found = min(total[0], most)
    return Boxes(rects[:found], ids[:found], more=total[0] > most)


def paint(tree: RTree, window: Window, width: int, height: int) -> Picture:
    """Paint everything that meets a window; raises ValueError for one that cannot be painted."""
    width, height = (max(1, min(side, SIDE_MAX)) for side in (width, height))
    cells = np.empty((height + 1, width + 1), np.int32)
    total = ffi.new("uint64_t *")
    error = lib.rt_view_paint(
        tree._handle,
        ffi.new("double[4]", list(window)),
        width,
        height,
        ffi.cast("int32_t *", cells.ctypes.data),
        total,
    )
    if error:
        raise ValueError(f"a window must have an area; this is {window}")
    counts = cells[:height, :width]
    most = int(counts.max())
    shade_of = _shades(np.arange(min(most, TABLE_MAX) + 1), most)
    shades = shade_of[counts] if most <= TABLE_MAX else _shades(counts, most)
    return Picture(shades, most, total[0])


def _shades(counts: npt.NDArray[np.integer[Any]], most: int) -> npt.NDArray[np.uint8]:
    scale = 254.0 / np.log1p(max(most - 1, 1))
    return np.where(counts > 0, 1 + np.log1p(np.maximum(counts - 1, 0)) * scale, 0).astype(np.uint8)


def look(tree: RTree, window: Window, width: int, height: int) -> Boxes | Picture:
    """Return the rectangles in a window if they are few, else a picture of them."""
    if tree.count(*window) <= BOXES_MAX:
        found = boxes(tree, 0, window)
        if not found.more:
            return found
    return paint(tree, window, width, height)


def level_counts(tree: RTree) -> list[int]:
    """Return how many nodes each level has, the leaves first."""
    counts: list[int] = []
    total = ffi.new("size_t *")
    for level in range(min(tree.stats(walk=False).height, LEVELS_MAX)):
        if lib.rt_level_rects(tree._handle, level, ffi.NULL, 0, total):
            break  # it became lower meanwhile
        counts.append(total[0])
    return counts


def facts_of(boxes_or_picture: Boxes | Picture) -> tuple[dict[str, Any], bytes]:
    """Return what travels: facts for the header, and bytes, little-endian."""
    if isinstance(boxes_or_picture, Picture):
        picture = boxes_or_picture
        rows, columns = picture.shades.shape
        facts = {"kind": "picture", "width": columns, "height": rows}
        return facts | {"most": picture.most, "total": picture.total}, picture.shades.tobytes()
    found = boxes_or_picture
    body = found.rects.astype("<f8").tobytes() + found.ids.astype("<u8").tobytes()
    return {"kind": "boxes", "total": len(found.ids), "more": found.more}, body
