"""Which chunk for which ring? Bandwidth one way, by both, as in figure 6 of the paper on L5.

``python -m benchmarks fig6 --json FILE --png FILE``: two heat maps, one for a receiver that makes
an object of each message (`receive`) and one for a receiver that leases it and copies it to where
it is wanted.  A line of JSON for each cell; the best chunk of each ring goes to standard error.

A message travels whole when it is not longer than `segment`, which here is a quarter of the ring,
as much as it may be; longer ones travel in pieces.  What the paper leaves empty, chunks larger than
the buffer, can therefore be measured.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import _report
from benchmarks._harness import rounded
from benchmarks.messaging_peers.pair import Pair, Spec

KIB, MIB = 1 << 10, 1 << 20
RINGS = tuple(64 * KIB << step for step in range(9))
CHUNKS = tuple(KIB << step for step in range(11))
TAKES = {"bytes": "receive() into bytes", "copies": "lease(), copied to one place"}

KEPT = "measure nothing; take the medians of what these runs found"

Cell = dict[str, Any]


def run(quick: bool, rounds: int | None = None) -> Iterator[Cell]:
    """Measure each cell, `rounds` times in turn; yield them as they are done."""
    rings, chunks = ((64 * KIB, MIB), (4 * KIB, 128 * KIB)) if quick else (RINGS, CHUNKS)
    times, seconds, once = (1, 0.01, MIB) if quick else (rounds or 3, 0.08, 16 * MIB)
    with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder:
        for ring in rings:
            _report.begin(f"ring of {size(ring)}", times * len(chunks) * len(TAKES))
            yield from of_ring(ring, chunks, times, seconds, once, folder)


def of_ring(
    ring: int, chunks: Sequence[int], rounds: int, seconds: float, once: int, folder: str
) -> list[Cell]:
    found: dict[tuple[str, int], list[float]] = {(t, c): [] for t in TAKES for c in chunks}
    with ExitStack() as stack:
        pairs = {
            take: stack.enter_context(Pair(spec(ring, take, max(chunks)), folder, seconds))
            for take in TAKES
        }
        for _ in range(rounds):
            for (take, chunk), rates in found.items():
                how = {"chunk_bytes": chunk, "transfer_bytes": max(chunk, min(once, 4096 * chunk))}
                rates.append(pairs[take].ask("transfer", **how)["rate"])
                _report.advance()
    return [
        {
            "take": take,
            "ring_bytes": ring,
            "chunk_bytes": chunk,
            "bytes_per_s": rounded(statistics.median(rates)),
            "n": len(rates),
        }
        for (take, chunk), rates in found.items()
    ]


def spec(ring: int, take: str, chunk_max: int) -> Spec:
    given = {"ring": ring, "segment": ring // 4, "take": take, "chunk_max_bytes": chunk_max}
    return Spec(f"ring of {size(ring)}, {take}", "ours_chunks", options=given)


def merged(texts: Sequence[str]) -> list[Cell]:
    """Return the medians of several runs."""
    found: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in (json.loads(line) for text in texts for line in text.splitlines()):
        key = cell["take"], cell["ring_bytes"], cell["chunk_bytes"]
        found.setdefault(key, []).append(cell)
    return [
        runs[0]
        | {
            "bytes_per_s": rounded(statistics.median(cell["bytes_per_s"] for cell in runs)),
            "n": sum(cell["n"] for cell in runs),
        }
        for runs in found.values()
    ]


def size(count_bytes: int) -> str:
    """Write a power of two, as "64 KiB"."""
    return f"{count_bytes // MIB} MiB" if count_bytes >= MIB else f"{count_bytes // KIB} KiB"


def best(cells: Sequence[Cell], take: str) -> dict[int, Cell]:
    """Return the fastest cell of each ring."""
    chosen: dict[int, Cell] = {}
    for cell in cells:
        before = chosen.get(cell["ring_bytes"], cell)
        if cell["take"] == take and cell["bytes_per_s"] >= before["bytes_per_s"]:
            chosen[cell["ring_bytes"]] = cell
    return chosen


def advice(cells: Sequence[Cell]) -> str:
    """Return a table in Markdown: the best chunk of each ring, by what the receiver does."""
    of = {take: best(cells, take) for take in TAKES}
    lines = [f"| ring | {' | '.join(TAKES.values())} |", "| --- | --- | --- |"]
    for ring in sorted({cell["ring_bytes"] for cell in cells}):
        said = [
            f"{size(of[take][ring]['chunk_bytes'])}, {of[take][ring]['bytes_per_s'] / 1e9:.1f} GB/s"
            for take in TAKES
        ]
        lines.append(f"| {size(ring)} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw the heat maps: chunks to the right, rings upwards, the best of each ring in bold."""
    from benchmarks import _plots

    rings = sorted({cell["ring_bytes"] for cell in cells})
    chunks = sorted({cell["chunk_bytes"] for cell in cells})
    maps = {
        title: {
            (rings.index(c["ring_bytes"]), chunks.index(c["chunk_bytes"])): c["bytes_per_s"] / 1e9
            for c in cells
            if c["take"] == take
        }
        for take, title in TAKES.items()
    }
    _plots.heat_maps(path, maps, [size(r) for r in rings], [size(c) for c in chunks])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fig6", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw the heat maps")
    parser.add_argument("--from", metavar="FILE", type=Path, dest="kept", nargs="+", help=KEPT)
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs")
    parser.add_argument("--rounds", type=int, help="how often each cell is measured (default: 3)")
    chosen = parser.parse_args(arguments)
    if chosen.kept:
        cells = merged([path.read_text() for path in chosen.kept])
    else:
        cells: list[Cell] = []
        with _report.Report():
            for cell in run(chosen.quick, chosen.rounds):
                print(json.dumps(cell), flush=True)
                cells.append(cell)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    print(advice(cells), end="", file=sys.stderr)
    if chosen.png:
        draw(cells, chosen.png)
    return 0
