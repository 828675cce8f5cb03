"""The pictures: drawn with matplotlib, without a display, small enough for a document."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, THEIRS = "#b5432a", "#5b7a99"
INK = "#333333"
STYLE: dict[Any, Any] = {"font.size": 8, "axes.edgecolor": INK, "svg.hashsalt": "l5"}


def figure(**how: Any) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(STYLE)
    return pyplot.subplots(layout="constrained", **how)


def strips(count: int, **how: Any) -> tuple[Any, list[Any]]:
    """Return a figure and so many parts of it, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(STYLE)
    drawn = pyplot.figure(layout="constrained", **how)
    return drawn, list(drawn.subfigures(nrows=count, squeeze=False)[:, 0])


def save(drawn: Any, path: Path) -> None:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=110)
    pyplot.close(drawn)


def bars(
    path: Path, panels: Mapping[str, Mapping[str, tuple[float, float, float]]], title: str
) -> None:
    """Draw one panel for each metric, on a logarithmic scale: min, median and max by the side.

    The sides have the order that they have in the first panel.
    """
    names = list(next(iter(panels.values())))
    drawn, axes = figure(
        ncols=len(panels), sharey=True, figsize=(3 + 2.6 * len(panels), 0.8 + 0.21 * len(names))
    )
    across = list(axes) if len(panels) > 1 else [axes]
    for axis, (label, values) in zip(across, panels.items(), strict=True):
        shown = [name for name in names if name in values]
        at = [names.index(name) for name in shown]
        low, middle, high = zip(*(values[name] for name in shown), strict=True)
        colors = [OURS if name.startswith("l5") else THEIRS for name in shown]
        axis.barh(at, middle, color=colors, height=0.7)
        axis.hlines(at, low, high, color=INK, linewidth=1)
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.grid(axis="x", which="major", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    across[0].set_yticks(range(len(names)), names)
    across[0].invert_yaxis()
    drawn.suptitle(title, fontsize=9)
    save(drawn, path)


def curves(path: Path, lines: Mapping[str, Mapping[int, float]], title: str, label: str) -> None:
    """Draw a line for each side: clients to the right, on logarithmic scales."""
    drawn, axis = figure(figsize=(7.2, 4.2))
    counts = sorted({count for line in lines.values() for count in line})
    marks = "osD^vP*X<>hd"
    for number, (name, line) in enumerate(lines.items()):
        ours = name.startswith("l5")
        axis.plot(
            list(line),
            list(line.values()),
            marker=marks[number % len(marks)],
            markersize=4,
            linewidth=2.2 if ours else 1.1,
            linestyle="-" if ours else "--",
            label=name,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xlabel("clients")
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axis.set_title(title, fontsize=9)
    save(drawn, path)


def heat_maps(
    path: Path,
    maps: Mapping[str, Mapping[tuple[int, int], float]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> None:
    """Draw GB/s by (row, column), beside each other on one scale; the best of a row is in bold."""
    drawn, axes = figure(ncols=len(maps), sharey=True, figsize=(5.4 * len(maps), 3.6))
    top = max(value for cells in maps.values() for value in cells.values())
    for axis, (title, cells) in zip(axes, maps.items(), strict=True):
        table = [[cells[row, column] for column in range(len(columns))] for row in range(len(rows))]
        image = axis.imshow(table, origin="lower", cmap="viridis", vmin=0, vmax=top, aspect="auto")
        for (row, column), value in cells.items():
            axis.text(
                column,
                row,
                f"{value:.1f}",
                ha="center",
                va="center",
                fontsize=7,
                color="black" if value > 0.6 * top else "white",
                weight="bold" if value == max(table[row]) else "normal",
            )
        axis.set_xticks(range(len(columns)), columns, rotation=45)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_xlabel("chunk (one message)")
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("ring")
    drawn.colorbar(image, ax=axes, label="GB/s")  # pyright: ignore[reportPossiblyUnboundVariable]
    save(drawn, path)
