"""Run benchmarks: ``python -m benchmarks CASE [--json FILE]``; ``list`` names the cases.

One JSON object a line goes to standard output (and to FILE); on a terminal a table goes to
standard error as well.
"""

import argparse
import importlib
import inspect
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _report
from benchmarks._harness import Row

CASES = {
    "messaging": (
        "benchmarks.messaging",
        "requests and one-way transfers beside sockets, ZeroMQ and iceoryx2 (M1 to M8)",
    ),
    "messaging-blocking": (
        "benchmarks.messaging_blocking",
        "requests without an event loop, beside blocking sockets, multiprocessing and ZeroMQ",
    ),
    "rtree": (
        "benchmarks.rtree",
        "the R-tree in process, beside Boost, boostree, shapely, libspatialindex (R1 to R6, R10)",
    ),
    "prefork-web": (
        "benchmarks.prefork_web",
        "one index, many processes: a web server over a shared tree, beside one STRtree a worker",
    ),
    "policies": (
        "benchmarks.policies",
        "what it costs a client to decide who searches",
    ),
    "batches": (
        "benchmarks.batches",
        "batches of searches that the server and its client share, beside either alone",
    ),
    "watching": (
        "benchmarks.watching",
        "what it costs to be looked at by l5 top, and recorded by a tap",
    ),
    "rtree-served": (
        "benchmarks.rtree_served",
        "the served R-tree, beside PostgreSQL (R7, R8)",
    ),
}


COMMANDS = {
    "fig6": ("benchmarks.fig6", "bandwidth by chunk and ring, as a heat map"),
    "l5-tables": (
        "benchmarks.l5_tables",
        "YCSB of the L5 paper: tables I to IV, figures 10, 11",
    ),
    "profile": ("benchmarks.profile", "instructions of a request, by callgrind (needs valgrind)"),
    "rdma": ("benchmarks.rdma", "small messages by verbs: figure 8 of the L5 paper"),
    "rdma-posts": ("benchmarks.rdma_posts", "what a request's posts cost the host, no device"),
    "regions": ("benchmarks.regions", "accesses to remote memory, mapped and emulated"),
    "report": ("benchmarks.report", "tables and plots of the peers from kept results"),
    "catfish-fig2": ("benchmarks.catfish.fig2", "Catfish: what a server over TCP runs out of"),
    "catfish-fig7": (
        "benchmarks.catfish.fig7",
        "Catfish: workers that poll, sleep, or adapt (R11)",
    ),
    "catfish-fig8": ("benchmarks.catfish.fig8", "Catfish: reads one by one, and many at once"),
    "catfish-fig9": ("benchmarks.catfish.fig9", "Catfish: ways of communication by size"),
    "catfish-fig10": ("benchmarks.catfish.fig10", "Catfish: throughput of searches (R9)"),
    "catfish-fig11": ("benchmarks.catfish.fig11", "Catfish: latency of searches (R9)"),
    "catfish-fig12": ("benchmarks.catfish.fig12", "Catfish: throughput, 90 % search (R9)"),
    "catfish-fig13": ("benchmarks.catfish.fig13", "Catfish: latency, 90 % search (R9)"),
    "catfish-fig14": ("benchmarks.catfish.fig14", "Catfish: stand-ins for rea02 (R9)"),
    "catfish-figures": ("benchmarks.catfish.figures", "Catfish: all of these, one after the other"),
    "catfish-softroce": (
        "benchmarks.catfish.softroce",
        "Catfish: over Soft-RoCE, between emulated machines",
    ),
}
"""With options of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in COMMANDS:
        return importlib.import_module(COMMANDS[given[0]][0]).main(given[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("case", choices=[*CASES, *COMMANDS, "all", "list"])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs")
    parser.add_argument("--rounds", type=positive, help="how often each side has its turn")
    parser.add_argument(
        "--repeats", type=int, help="how often a disturbed round may be done again (default: 2)"
    )
    parser.add_argument(
        "--goal", action="append", metavar="M1", help="only what measures this goal; repeatable"
    )
    parser.add_argument(
        "--clients", type=positive, action="append", metavar="N", help="this many; repeatable"
    )
    chosen = parser.parse_args(given)
    if chosen.case == "list":
        for name, (_, text) in (CASES | COMMANDS).items():
            print(f"{name:20}{text}")
        return 0
    names = list(CASES) if chosen.case == "all" else [chosen.case]
    with _report.Report() as report:
        rows = rows_of(names, vars(chosen))
        _report.write(rows, chosen.json, report)
    return 0


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def rows_of(names: Sequence[str], options: dict[str, Any]) -> Iterator[Row]:
    for name in names:
        try:
            run = importlib.import_module(CASES[name][0]).run
        except ModuleNotFoundError as error:
            wanted = "is not part of this version"
            if error.name != CASES[name][0]:
                wanted = f"needs {error.name}: install the extra `bench`"
            print(f"benchmarks: {name} left out: it {wanted}", file=sys.stderr)
            continue
        taken = inspect.signature(run).parameters
        for option in ("rounds", "repeats", "goal", "clients"):
            if options[option] is not None and option not in taken:
                print(f"benchmarks: {name} takes no --{option}", file=sys.stderr)
        given = {key: value for key, value in options.items() if value is not None}
        yield from run(**{key: value for key, value in given.items() if key in taken})


if __name__ == "__main__":
    # Who is told to end leaves no server behind: the blocks that started them are left in order.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
