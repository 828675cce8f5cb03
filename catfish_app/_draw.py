"""The demo's map: the data, one level of the tree over it, one query and its hits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from catfish_app._measure import Window
from catfish_app._rtree import Floats

SEA = "#0b1420"
COAST = "#cfdded"
NODE = "#35d0ba"
WINDOW = "#ff4d7e"
HIT = "#ffd166"
TEXT = "#e8eef5"
DPI = 160
ZOOM = 1.9
"""How many windows wide the detail is."""


def draw_map(
    path: Path,
    lines: Floats,
    nodes: Floats,
    leaves: Floats,
    window: Window,
    hits: Sequence[int],
    facts: Sequence[str],
    title: str,
) -> None:
    """Draw the world with `nodes` over it, and the query's surroundings with `leaves`, to a PNG.

    `lines` are rows of x0, y0, x1, y1; `hits` rows of it; `facts` lines of text.
    """
    figure: Any = Figure(figsize=(15, 13), dpi=DPI, facecolor=SEA)
    canvas: Any = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2, 2, height_ratios=(1.33, 1), width_ratios=(1.32, 1), hspace=0.045, wspace=0.04,
        left=0.02, right=0.98, top=0.95, bottom=0.02,
    )  # fmt: skip
    figure.text(0.02, 0.974, title, color=TEXT, fontsize=21, fontweight="bold", va="center")
    _draw_world(figure.add_subplot(grid[0, :]), lines, nodes, window)
    _draw_detail(figure.add_subplot(grid[1, 0]), lines, leaves, window, hits)
    _write_facts(figure.add_subplot(grid[1, 1]), facts, len(nodes), len(hits))
    canvas.print_png(str(path))


def _draw_world(axes: Any, lines: Floats, nodes: Floats, window: Window) -> None:
    _frame(axes, (-180, -90, 180, 84))
    axes.plot(*_path(lines), color=COAST, linewidth=0.5, solid_joinstyle="round")
    _add_boxes(axes, nodes, edge=NODE, width=0.8, alpha=0.7, fill=0.025)
    _add_window(axes, window, width=2.2)
    axes.annotate(
        "the query below", (window[0], window[3]), (-46, 33), color=WINDOW, fontsize=14,
        fontweight="bold",
        arrowprops={"arrowstyle": "-", "color": WINDOW, "linewidth": 1.4},
    )  # fmt: skip


def _draw_detail(
    axes: Any, lines: Floats, leaves: Floats, window: Window, hits: Sequence[int]
) -> None:
    extent = _around(window)
    _frame(axes, extent)
    rows = np.asarray(hits, dtype=np.intp)
    axes.set_aspect(1 / np.cos(np.radians((extent[1] + extent[3]) / 2)), anchor="W")
    axes.plot(*_path(_meeting(lines, extent)), color=COAST, linewidth=0.9)
    _add_boxes(axes, _meeting(leaves, extent), edge=NODE, width=0.7, alpha=0.7, fill=0.03)
    axes.plot(*_path(lines[rows]), color=HIT, linewidth=1.5, solid_capstyle="round")
    _add_window(axes, window, width=2.4)


def _write_facts(axes: Any, facts: Sequence[str], nodes: int, hits: int) -> None:
    axes.set_axis_off()
    handles = [
        Line2D([], [], color=COAST, linewidth=1.5, label="coasts and borders"),
        Line2D([], [], color=NODE, linewidth=1.5, label=f"nodes: {nodes} above, leaves left"),
        Line2D([], [], color=WINDOW, linewidth=2.4, label="the query"),
        Line2D([], [], color=HIT, linewidth=2.4, label=f"its {hits:,} hits"),
    ]
    axes.legend(
        handles=handles, loc="upper left", frameon=False, labelcolor=TEXT, fontsize=13.5,
        borderaxespad=0.2, handlelength=1.6,
    )  # fmt: skip
    for index, line in enumerate(facts):
        axes.text(
            0.015, 0.66 - 0.068 * index, line, color=TEXT, fontsize=13.5,
            transform=axes.transAxes, va="top",
        )  # fmt: skip


def _frame(axes: Any, extent: Sequence[float]) -> None:
    axes.set_facecolor(SEA)
    axes.set_xlim(extent[0], extent[2])
    axes.set_ylim(extent[1], extent[3])
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#2a3a4d")


def _add_boxes(
    axes: Any, boxes: Floats, *, edge: str, width: float, alpha: float, fill: float
) -> None:
    x0, y0, x1, y1 = boxes.T
    corners: Any = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(corners, facecolor=edge, edgecolor="none", alpha=fill))
    axes.add_collection(
        PolyCollection(corners, facecolor="none", edgecolor=edge, linewidth=width, alpha=alpha)
    )


def _add_window(axes: Any, window: Window, *, width: float) -> None:
    x0, y0, x1, y1 = window
    axes.add_patch(
        Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=WINDOW, linewidth=width)
    )


def _around(window: Window) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = window
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    half_x, half_y = (x1 - x0) * ZOOM / 2, (y1 - y0) * ZOOM / 2
    return x - half_x, y - half_y, x + half_x, y + half_y


def _meeting(rows: Floats, extent: Sequence[float]) -> Floats:
    """Keep the rows whose box meets an extent."""
    low, high = np.minimum(rows[:, :2], rows[:, 2:]), np.maximum(rows[:, :2], rows[:, 2:])
    meets = (low <= extent[2:]).all(axis=1) & (high >= extent[:2]).all(axis=1)
    return rows[meets]


def _path(lines: Floats) -> tuple[Any, Any]:
    """Join segments that follow one another into one path, with gaps (NaN) between the others.

    One path of all is drawn many times faster than hundreds of thousands of segments. Those that
    cross the antimeridian, and so the whole map, are left out.
    """
    lines = lines[np.abs(lines[:, 2] - lines[:, 0]) < 180]
    if not len(lines):
        return np.empty(0), np.empty(0)
    ends = np.ones(len(lines), dtype=bool)
    ends[:-1] = (lines[1:, :2] != lines[:-1, 2:]).any(axis=1)
    gaps = np.flatnonzero(ends)
    points = np.insert(lines[:, :2], np.repeat(gaps + 1, 2), np.nan, axis=0)
    points[gaps + 1 + 2 * np.arange(len(gaps))] = lines[gaps, 2:]
    return points[:, 0], points[:, 1]
