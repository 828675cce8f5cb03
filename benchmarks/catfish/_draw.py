"""The pictures of the figures: lines are simulated, marks with whiskers were measured here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _plots
from benchmarks.catfish._figure import METRICS, Axis

COLORS = ("#b5432a", "#2f6f9f", "#5b8c3a", "#8a5aa5", "#c28a1c", "#444444", "#3aa6a0", "#b56a9a")
MARKS = "osD^vPX*"
Row = dict[str, Any]


def draw(path: Path, title: str, axes: Sequence[Axis], across: str, rows: Sequence[Row]) -> None:
    """Draw a row of panels for each axis, a column for each case."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    drawn, grid = _plots.figure(
        nrows=len(axes),
        ncols=len(cases),
        squeeze=False,
        figsize=(1.9 + 3.1 * len(cases), 0.9 + 2.5 * len(axes)),
    )
    seen: dict[str, Any] = {}
    for down, axis in enumerate(axes):
        for right, case in enumerate(cases):
            panel = grid[down][right]
            chosen = [
                row
                for row in rows
                if row["case"] == case and row["metric"] == METRICS[axis.metric][0]
            ]
            for number, method in enumerate(methods):
                lines = _lines(panel, [r for r in chosen if r["method"] == method], number, axis)
                for line in lines:
                    seen.setdefault(method, line)
            _frame(panel, axis, across, case, first=right == 0, last=down + 1 == len(axes))
    _legend(drawn, seen, rows)
    drawn.suptitle(title, fontsize=9)
    _plots.save(drawn, path)


def _lines(panel: Any, rows: Sequence[Row], number: int, axis: Axis) -> list[Any]:
    """Draw one method in one panel; return what stands for it in the legend."""
    color, mark = COLORS[number % len(COLORS)], MARKS[number % len(MARKS)]
    made: list[Any] = []
    for simulated in (True, False):
        some = sorted((r for r in rows if r["simulated"] is simulated), key=lambda r: r["x"])
        some = [row for row in some if not axis.log or row["value"]["median"] > 0]
        if not some:
            continue
        across = [row["x"] for row in some]
        middle = [row["value"]["median"] for row in some]
        if simulated:
            made += panel.plot(across, middle, color=color, linewidth=1.4)
        else:
            low = [m - row["value"]["min"] for m, row in zip(middle, some, strict=True)]
            high = [row["value"]["max"] - m for m, row in zip(middle, some, strict=True)]
            bars = panel.errorbar(
                across, middle, yerr=[low, high], color=color, marker=mark, markersize=4,
                linestyle=":", linewidth=0.8, capsize=2,
            )  # fmt: skip
            made.append(bars.lines[0])
    return made


def _frame(panel: Any, axis: Axis, across: str, case: str, *, first: bool, last: bool) -> None:
    panel.set_xscale("log", base=2)
    if axis.log:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.set_title(case.partition("/")[2], fontsize=8)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if first:
        panel.set_ylabel(axis.label)
    if last:
        panel.set_xlabel(across)


def _legend(drawn: Any, seen: dict[str, Any], rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D

    kinds = {row["simulated"] for row in rows}
    handles = [
        Line2D([], [], color=line.get_color(), marker=MARKS[number % len(MARKS)], markersize=4)
        for number, line in enumerate(seen.values())
    ]
    names = list(seen)
    if True in kinds:
        handles.append(Line2D([], [], color="black", linewidth=1.4))
        names.append("line: simulated")
    if False in kinds:
        handles.append(Line2D([], [], color="black", marker="o", linestyle=":", markersize=4))
        names.append("marks: measured")
    drawn.legend(handles, names, loc="outside right center", frameon=False, fontsize=7)
