"""Tables in Markdown of what figures found: ``python -m benchmarks.catfish.tables FILE...``.

A table for each figure, setup and case: methods down, numbers of clients across, medians of the
rate.  Then one of the goals: medians of the ratios, by number of clients.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catfish._figure import METRICS, kept

Row = dict[str, Any]
SHOWN = ("rate", "mean_us")
RATIOS = ("vs_best", "vs_sum")


def main(names: Sequence[str]) -> int:
    rows = kept([Path(name) for name in names])
    for line in [*tables(rows), *goals(rows)]:
        print(line)
    return 0


def tables(rows: Sequence[Row]) -> Iterator[str]:
    for key in SHOWN:
        name, unit = METRICS[key]
        chosen = [row for row in rows if row["metric"] == name]
        for case, setup in dict.fromkeys((row["case"], row["setup"]) for row in chosen):
            some = [row for row in chosen if (row["case"], row["setup"]) == (case, setup)]
            yield from ("", f"**{case}**, {setup}: {name} ({unit})", "")
            yield from table(some, [(row["method"], row) for row in some])


def goals(rows: Sequence[Row]) -> Iterator[str]:
    names = {METRICS[key][0] for key in RATIOS}
    chosen = [row for row in rows if row["metric"] in names and row["goal"]]
    if chosen:
        yield from ("", "**Goals**, medians of the ratios by number of clients", "")
        named = [
            (f"{row['goal']}: {row['case']}, {row['setup']}, {row['metric']}", row)
            for row in chosen
        ]
        yield from table(chosen, named)


def table(rows: Sequence[Row], named: Sequence[tuple[str, Row]]) -> Iterator[str]:
    places = sorted({row["x"] for row in rows})
    yield f"| | {' | '.join(f'{place:g}' for place in places)} |"
    yield f"| --- |{' --- |' * len(places)}"
    for name in dict.fromkeys(name for name, _ in named):
        found = {row["x"]: row["value"]["median"] for each, row in named if each == name}
        cells = [shown(found[place]) if place in found else "" for place in places]
        yield f"| {name} | {' | '.join(cells)} |"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
