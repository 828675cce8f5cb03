"""Tables and plots from kept results: ``python -m benchmarks report --json FILE...``.

``--markdown`` prints the tables of the peers side by side, as they stand in the documents;
``--short`` only the one of README; ``--png FOLDER`` draws them.  No figure is typed by hand.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks._harness import Row
from benchmarks._report import short, three

COLUMNS = ("round trips", "p50", "p99", "p99.9", "processor time of a million")
HEADS = ("round trips (1/s)", "p50 (us)", "p99 (us)", "p99.9 (us)", "CPU s per million")
OURS = "l5 shm, asyncio"

LEFT_OUT_OF_BRIEF = ("framed", "REQ/REP, ipc, blocking", "Req0", "event", "asyncio streams")

Values = dict[str, dict[str, dict[str, float]]]
"""By the side and the metric: min, median, max."""


def values(rows: Iterable[Row], case: str) -> Values:
    """Collect a case's rows by side, ours first."""
    found: Values = {}
    for row in rows:
        if row["case"] == case:
            found.setdefault(OURS, {})[row["metric"]] = row["ours"]
            found.setdefault(row["peer"], {})[row["metric"]] = row["peer_value"]
    return found


def sorted_by(found: Values, metric: str) -> Values:
    """Put the side with the most of it first."""
    order = sorted(found, key=lambda side: -found[side][metric]["median"])
    return {side: found[side] for side in order}


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    made = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in made)


def requests(rows: Sequence[Row]) -> str:
    found = sorted_by(values(rows, "peers/request"), COLUMNS[0])
    lines = ([side, *(three(of[metric]) for metric in COLUMNS)] for side, of in found.items())
    return table(("64 bytes, one client", *HEADS), lines)


def brief(rows: Sequence[Row]) -> str:
    """Return README's table: one side of each system."""
    found = sorted_by(values(rows, "peers/request"), COLUMNS[0])
    chosen = (COLUMNS[0], "p50", "p99")
    lines = (
        [side, *(three(of[metric]) for metric in chosen)]
        for side, of in found.items()
        if not any(part in side for part in LEFT_OUT_OF_BRIEF)
    )
    return table(("64 bytes, one client", *HEADS[:3]), lines)


def beside(rows: Sequence[Row]) -> str:
    """Return what a hog does to each."""
    found = sorted_by(values(rows, "peers/request/beside-hog"), "round trips")
    lines = ([side, three(of["round trips"]), three(of["p99"])] for side, of in found.items())
    return table(("beside a busy process", "round trips (1/s)", "p99 (us)"), lines)


def idle(rows: Sequence[Row]) -> str:
    """Return what each uses while nothing happens."""
    found = sorted_by(values(rows, "peers/idle"), "processor time")
    lines = (
        [side, short(of["processor time"]["median"]), short(of["wake-ups"]["median"])]
        for side, of in found.items()
    )
    return table(("idle", "processor time (%)", "wake-ups (1/s)"), lines)


def one_way(rows: Sequence[Row]) -> str:
    found = sorted_by(values(rows, "peers/one-way"), "bandwidth")
    lines = ([side, three(of["bandwidth"])] for side, of in found.items())
    return table(("one way, messages of 128 KiB", "bandwidth (B/s)"), lines)


def crowds(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return the requests of all clients together, by side and number of clients.

    Ours had its turn beside each peer, so its value is the median of those.
    """
    turns: dict[str, dict[int, list[float]]] = {}
    for row in (row for row in rows if row["case"].endswith("-clients") and is_rate(row)):
        for side, of in ((OURS, row["ours"]), (row["peer"], row["peer_value"])):
            turns.setdefault(side, {}).setdefault(clients(row["case"]), []).append(of["median"])
    return {
        side: {count: statistics.median(of[count]) for count in sorted(of)}
        for side, of in turns.items()
    }


def is_rate(row: Row) -> bool:
    return row["metric"] == COLUMNS[0] and row["case"].startswith("peers/")


def clients(case: str) -> int:
    return int(case.removeprefix("peers/").removesuffix("-clients"))


def many(rows: Sequence[Row]) -> str:
    found = crowds(rows)
    counts = sorted({count for line in found.values() for count in line})
    lines = (
        [side, *(short(line[count]) if count in line else "" for count in counts)]
        for side, line in found.items()
    )
    return table(("requests of all clients together (1/s)", *map(str, counts)), lines)


def draw(rows: Sequence[Row], folder: Path) -> None:
    from benchmarks import _plots

    found = values(rows, "peers/request")
    if found:
        shown = sorted_by(found, COLUMNS[0])
        panels = {
            head: {side: bounds(of[metric]) for side, of in shown.items()}
            for metric, head in (
                (COLUMNS[0], "round trips (1/s)"),
                ("p50", "p50 (us)"),
                ("p99", "p99 (us)"),
            )
        }
        _plots.bars(folder / "messaging.png", panels, "requests of 64 bytes, one client")
    crowd = crowds(rows)
    if crowd:
        _plots.curves(
            folder / "messaging-clients.png",
            crowd,
            "requests of 64 bytes, many clients of one server",
            "requests of all together (1/s)",
        )


def bounds(spread: dict[str, float]) -> tuple[float, float, float]:
    return spread["min"], spread["median"], spread["max"]


TABLES = {
    "peers/request": requests,
    "peers/request/beside-hog": beside,
    "peers/idle": idle,
    "peers/one-way": one_way,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, nargs="+", required=True)
    parser.add_argument("--markdown", action="store_true", help="print the tables")
    parser.add_argument("--short", action="store_true", help="print README's table")
    parser.add_argument("--png", metavar="FOLDER", type=Path, help="draw the plots there")
    chosen = parser.parse_args(arguments)
    texts = [path.read_text(encoding="utf-8") for path in chosen.json]
    rows: list[Row] = [json.loads(line) for text in texts for line in text.splitlines()]
    there = {row["case"] for row in rows}
    if chosen.short:
        print(brief(rows), end="")
    if chosen.markdown:
        made = [make(rows) for case, make in TABLES.items() if case in there]
        print("\n".join([*made, many(rows)] if crowds(rows) else made), end="")
    if chosen.png:
        draw(rows, chosen.png)
    return 0
