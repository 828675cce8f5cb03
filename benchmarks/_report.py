"""What people see on a terminal, by standard error: a bar while it runs, a table at its end.

``python -m benchmarks._report FILE...`` makes a table in Markdown of the lines that were kept.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks._harness import KEYS, Row

_current: "Report | None" = None


def write(rows: Iterable[Row], path: Path | None, report: "Report") -> None:
    """Put each row, when it is there, as a line on standard output and in the file `path`."""
    with ExitStack() as stack:
        files = [sys.stdout]
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(stack.enter_context(path.open("w", encoding="utf-8")))
        for row in rows:
            line = json.dumps({key: row[key] for key in KEYS})
            for file in files:
                print(line, file=file, flush=True)
            report.add(row)


class Report:
    """Shows nothing where standard error is no terminal, or where rich is not installed."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._bar: Any = None
        self._task: Any = None
        self._console: Any = None

    def __enter__(self) -> Self:
        global _current
        _current = self
        if sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress
            except ImportError:
                return self
            self._console = Console(stderr=True)
            self._bar = Progress(console=self._console, transient=True, redirect_stdout=False)
            self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _current
        _current = None
        if self._bar is not None:
            self._bar.stop()
            if self._rows:
                self._console.print(table(self._rows))

    def add(self, row: Row) -> None:
        self._rows.append(row)

    def begin(self, what: str, steps: int) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=steps)

    def advance(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


def begin(what: str, steps: int) -> None:
    """Name what is measured next, and in how many steps; without a report nothing happens."""
    if _current is not None:
        _current.begin(what, steps)


def advance() -> None:
    """One step of it is done."""
    if _current is not None:
        _current.advance()


def table(rows: list[Row]) -> Any:
    from rich.table import Table

    shown = Table(title="ours beside each peer: min / median / max of the rounds")
    for title in ("case", "goal", "metric", "peer"):
        shown.add_column(title)
    for title in ("ours", "peer's", "ratio", "n", "disturbed"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(*cells(row))
    return shown


def cells(row: Row) -> list[str]:
    """Return the texts of a table's line."""
    return [
        row["case"],
        row["goal"] or "",
        f"{row['metric']} ({row['unit']})",
        row["peer"],
        three(row["ours"]),
        three(row["peer_value"]),
        three(row["ratio"]),
        str(row["n"]),
        str(row.get("disturbed", "")),
    ]


def three(spread: dict[str, float]) -> str:
    return " / ".join(short(spread[key]) for key in ("min", "median", "max"))


def short(value: float) -> str:
    """Write three digits, with K, M and G for thousands, millions and their thousands."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def markdown(rows: Iterable[Row]) -> str:
    """Return a table for a document."""
    lines = ["case", "goal", "metric", "peer", "ours", "peer's", "ratio"]
    table = [lines, ["---"] * len(lines), *(cells(row)[: len(lines)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


if __name__ == "__main__":
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]]
    print(markdown(json.loads(line) for text in texts for line in text.splitlines()), end="")
