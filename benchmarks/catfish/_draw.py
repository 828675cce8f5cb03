"""The pictures of the figures: a strip of panels for each setup, and each thing that is looked at.

What is simulated has lines without marks on white; what was measured here has marks with whiskers
on a tint, and the strip says so.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _plots
from benchmarks.catfish._figure import METRICS, Axis

COLORS = {
    "TCP/IP, 1 Gb/s": "#c9a36b",
    "TCP/IP, 40 Gb/s": "#8f6b32",
    "TCP loopback": "#8f6b32",
    "TCP": "#8f6b32",
    "Unix socket": "#c28a1c",
    "fast messaging, polling": "#7d7d7d",
    "offloading, node by node": "#8fb8dc",
    "server only, events": "#5b8c3a",
    "server only": "#5b8c3a",
    "client only, multi-issue": "#2f6f9f",
    "client only": "#2f6f9f",
    "adaptive, Algorithm 1": "#d08fb4",
    "adaptive": "#b5432a",
    "polling threads": "#7d7d7d",
    "worker polls": "#7d7d7d",
    "sleeping threads": "#5b8c3a",
    "worker sleeps": "#5b8c3a",
    "worker adapts": "#b5432a",
}
"""The same method has the same colour in each figure."""
OTHERS = ("#2f6f9f", "#b5432a", "#5b8c3a", "#8a5aa5", "#c28a1c", "#444444")
MARKS = {
    "TCP": "v",
    "TCP loopback": "v",
    "Unix socket": "^",
    "server only": "o",
    "client only": "s",
    "adaptive": "D",
    "worker polls": "v",
    "worker sleeps": "o",
    "worker adapts": "D",
}
"""As colours: measured methods have the same mark in each figure."""
OTHER_MARKS = "osD^vPX*"
TINT = "#fbf4ea"
Row = dict[str, Any]


def draw(path: Path, title: str, axes: Sequence[Axis], across: str, rows: Sequence[Row]) -> None:
    """Draw a strip of panels for each axis and setup, a panel for each case."""
    strips = [
        (axis, setup, chosen)
        for axis in axes
        for setup in dict.fromkeys(row["setup"] for row in rows)
        if (chosen := [r for r in rows if r["setup"] == setup and shows(r, axis)])
    ]
    if not strips:
        raise ValueError(f"{title}: there are no rows with {', '.join(a.metric for a in axes)}")
    columns = max(len(cases_of(chosen)) for _, _, chosen in strips)
    drawn, parts = _plots.strips(
        len(strips), figsize=(2.2 + 2.9 * columns, 0.5 + 2.35 * len(strips))
    )
    drawn.suptitle(title, fontsize=10, fontweight="bold")
    for part, (axis, setup, chosen) in zip(parts, strips, strict=True):
        _strip(part, columns, axis, across, setup, chosen)
    _plots.save(drawn, path)


def shows(row: Row, axis: Axis) -> bool:
    right = row["metric"] == METRICS[axis.metric][0]
    return right and (not axis.log or row["value"]["median"] > 0)


def cases_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["case"].partition("/")[2] for row in rows))


def _strip(
    part: Any, columns: int, axis: Axis, across: str, setup: str, rows: Sequence[Row]
) -> None:
    part.suptitle(setup, fontsize=8, x=0.01, ha="left", style="italic")
    panels = part.subplots(ncols=columns, squeeze=False)[0]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    seen: dict[str, Any] = {}
    cases = cases_of(rows)
    for panel in panels[len(cases) :]:
        panel.set_axis_off()
    for panel, case in zip(panels, cases, strict=False):
        here = [row for row in rows if row["case"].partition("/")[2] == case]
        for number, method in enumerate(methods):
            some = sorted((r for r in here if r["method"] == method), key=lambda r: r["x"])
            if some:
                seen.setdefault(method, _line(panel, some, number))
        _frame(panel, axis, across, case, here)
    panels[0].set_ylabel(axis.label)
    names = [name for name in methods if name in seen]
    where, place = part, "outside right center"
    if len(cases) < columns:
        where, place = panels[len(cases)], "center left"
    handles = [seen[name] for name in names]
    where.legend(handles, names, loc=place, frameon=False, fontsize=7)


def _line(panel: Any, rows: Sequence[Row], number: int) -> Any:
    """Draw one method in one panel; return what stands for it in the legend.

    What adapts is a wide line below all others: where a thin one goes the same way, both are seen.
    """
    method = rows[0]["method"]
    color = COLORS.get(method, OTHERS[number % len(OTHERS)])
    across = [row["x"] for row in rows]
    middle = [row["value"]["median"] for row in rows]
    if rows[0]["simulated"]:
        wide, order = (3.4, 1.9) if method == "adaptive" else (1.3, 2.0)
        return panel.plot(across, middle, color=color, linewidth=wide, zorder=order)[0]
    low = [m - row["value"]["min"] for m, row in zip(middle, rows, strict=True)]
    high = [row["value"]["max"] - m for m, row in zip(middle, rows, strict=True)]
    return panel.errorbar(
        across, middle, yerr=[low, high], color=color,
        marker=MARKS.get(method, OTHER_MARKS[number % len(OTHER_MARKS)]),
        markersize=4.5, linestyle=":", linewidth=0.9, capsize=2.5,
    )  # fmt: skip


def _frame(panel: Any, axis: Axis, across: str, case: str, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import (
        EngFormatter,
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        NullLocator,
        PercentFormatter,
    )

    panel.set_xscale("log", base=2)
    places = sorted({row["x"] for row in rows})
    panel.xaxis.set_major_locator(FixedLocator(places))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda place, _: place_text(place)))
    panel.yaxis.set_major_formatter(EngFormatter(sep=""))
    if axis.share:
        panel.set_ylim(0, 1.05)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif axis.log:
        panel.set_yscale("log")
        low = min(row["value"]["min"] for row in rows)
        high = max(row["value"]["max"] for row in rows)
        steps = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
        few = MaxNLocator(5, steps=[1, 2, 5, 10])
        panel.yaxis.set_major_locator(few if high < 4 * low else LogLocator(subs=steps))
        panel.yaxis.set_major_formatter(EngFormatter(sep=""))
        panel.yaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.set_title(case, fontsize=8)
    panel.set_xlabel(across)
    if not rows[0]["simulated"]:
        panel.set_facecolor(TINT)


def place_text(place: float) -> str:
    """Write a place of the horizontal axis: a count, a size by powers of 1024, a scale in full."""
    from matplotlib.ticker import EngFormatter

    if place < 1:
        return f"{place:.9f}".rstrip("0")
    for size_bytes, unit in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if place >= size_bytes and place % size_bytes == 0:
            return f"{place / size_bytes:g}{unit}"
    return EngFormatter(sep="")(place)
