"""The demo itself: processes, searches, tables, the map and the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import attrs
from rich.console import Console
from rich.table import Table

import l5
from catfish_app._cli_run import innermost, progress_bar
from catfish_app._client import RTreeClient
from catfish_app._data import demo_lines, demo_segments
from catfish_app._demo_processes import Child, ChildError, child
from catfish_app._draw import draw_map
from catfish_app._measure import Window
from catfish_app._wire import join_ids

QUERY: Window = (22.6, 35.8, 28.4, 39.2)
"""The Aegean sea: many islands, two coasts."""
SAMPLE_S = 0.25
WIDTH = 120
"""Characters a line where there is no terminal."""
TITLE = "The world's coasts and borders in an R-tree that other processes search"


@attrs.define(eq=False)
class Demo:
    """What the demo has found out so far."""

    options: argparse.Namespace
    console: Console
    folder: Path
    report: dict[str, Any] = attrs.field(factory=dict[str, Any])

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def run_demo(options: argparse.Namespace) -> int:
    """Run all of it; return the exit status."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        with tempfile.TemporaryDirectory(prefix="l5-demo-") as folder:
            return anyio.run(_main, Demo(options, console, Path(folder)))
    except BaseException as error:
        cause = innermost(error)
        known = ChildError | l5.L5Error | OSError | anyio.BrokenResourceError | RuntimeError
        if not isinstance(cause, known):
            raise
        console.print(f"demo: {cause}", style="red", highlight=False, markup=False)
        return 1


async def _main(demo: Demo) -> int:
    """Run the demo until it ends or a signal comes; children end in either case."""
    stopped_by: list[int] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                async for number in signals:
                    stopped_by.append(number)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            await _demonstrate(demo)
            tasks.cancel_scope.cancel()
    if stopped_by:
        demo.say(f"{signal.Signals(stopped_by[0]).name}: stopped")
        return 128 + stopped_by[0]
    return 0


async def _demonstrate(demo: Demo) -> None:
    began = time.perf_counter()
    socket = f"l5+unix://{demo.folder}/tree.sock"
    workers = str(demo.options.workers)
    async with child(
        "server", demo.folder, "-m", "catfish_app", "serve", socket, "l5://127.0.0.1:0",
        "--json", "--workers", workers,
    ) as server:  # fmt: skip
        urls = (await server.read())["urls"]
        demo.say(f"a server process listens on {' and '.join(urls)}")
        async with await RTreeClient.connect(urls[0]) as tree:
            await _load(demo, tree)
            await _search_together(demo, tree, urls)
            await _search_alone(demo, urls)
            await _draw(demo, tree)
            demo.report["server"] |= attrs.asdict(await tree.stats())
        status = await server.stop()
        if status:
            raise ChildError(f"the server ended with status {status}")
    demo.report["elapsed_s"] = time.perf_counter() - began
    _write(demo)


async def _load(demo: Demo, tree: RTreeClient) -> None:
    segments = demo_segments()
    began = time.perf_counter()
    with progress_bar(demo.console) as bar:
        task = bar.add_task("loading segments", total=len(segments))
        packed = await tree.load(
            segments, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    seconds = time.perf_counter() - began
    count = (await tree.stats()).tree.entries
    if count != len(segments) or not packed:
        raise ChildError(f"the server holds {count} of {len(segments)} segments")
    transport = tree.connection.transport
    demo.say(f"{count:,} segments loaded over {transport} in {seconds:.2f} s, and packed")
    demo.report |= {
        "segments": count,
        "load": {"seconds": seconds, "transport": transport},
        "machine": {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()},
    }


# ---- searching ---------------------------------------------------------------------------------


async def _start_client(demo: Demo, stack: AsyncExitStack, url: str, number: int) -> Child:
    arguments = ["-m", "catfish_app._demo_client", url, str(demo.options.seconds), str(number)]
    return await stack.enter_async_context(child(f"client {number}", demo.folder, *arguments))


async def _run_clients(demo: Demo, urls: Sequence[str], first: int = 1) -> list[dict[str, Any]]:
    """Start clients, let them begin together, and return what they measured."""
    async with AsyncExitStack() as stack:
        clients = [
            await _start_client(demo, stack, url, number) for number, url in enumerate(urls, first)
        ]
        for client in clients:
            await client.read()
        for client in clients:
            await client.go()
        return [await client.read(demo.options.seconds + 60.0) for client in clients]


async def _search_together(demo: Demo, tree: RTreeClient, urls: Sequence[str]) -> None:
    chosen = [urls[number % len(urls)] for number in range(demo.options.clients)]
    demo.say(f"\n{len(chosen)} client processes search at once, {demo.options.seconds:g} s ...")
    shares: list[float] = []
    results: list[dict[str, Any]] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, tree, shares)
        results += await _run_clients(demo, chosen)
        tasks.cancel_scope.cancel()
    busy = statistics.fmean(shares) if shares else 0.0
    demo.report["clients"] = [
        {"client": number} | result for number, result in enumerate(results, 1)
    ]
    demo.report["server"] = {"busy_share_searching": busy}
    total = sum(result["searches_per_s"] for result in results)
    demo.report["searches_per_s"] = total
    table = _table("client", [(str(n), result) for n, result in enumerate(results, 1)])
    demo.console.print(table)
    demo.say(f"together {total:,.0f} searches/s; the server's workers were busy {busy:.0%}")
    _say_verified(demo, results)


async def _watch(tree: RTreeClient, shares: list[float]) -> None:
    """Note how busy the server is while it is."""
    while True:
        await anyio.sleep(SAMPLE_S)
        share = (await tree.stats()).busy_share
        if share > 0.001:
            shares.append(share)


def _say_verified(demo: Demo, results: Sequence[dict[str, Any]]) -> None:
    verified = sum(result["verified"] for result in results)
    demo.report["verified"] = demo.report.get("verified", 0) + verified
    demo.say(f"{verified} answers compared with a search of all segments by NumPy: all equal")


async def _search_alone(demo: Demo, urls: Sequence[str]) -> None:
    """Compare one client on shared memory with the same one kept on sockets."""
    unix = next(url for url in urls if url.startswith("l5+unix:"))
    tcp = next(url for url in urls if not url.startswith("l5+unix:"))
    runs = {
        "as it likes": unix,
        "Unix socket only": f"{unix}?transports=unix",
        "TCP only": tcp.replace("l5://", "l5+tcp://", 1),
    }
    demo.say("\nthe same client alone: free to upgrade, and kept on sockets ...")
    results: list[dict[str, Any]] = []
    for name, url in runs.items():
        [result] = await _run_clients(demo, [url], first=101)
        results.append({"client": name} | result)
    demo.report["alone"] = results
    slowest = min(result["searches_per_s"] for result in results)
    table = _table("one client", [(str(result["client"]), result) for result in results], slowest)
    demo.console.print(table)
    _say_verified(demo, results)


def _table(
    first: str, rows: Sequence[tuple[str, dict[str, Any]]], slowest: float | None = None
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in (first, "transport", "why"):
        table.add_column(name, overflow="fold")
    for name in ("searches/s", "p50 us", "p99 us", "mean results"):
        table.add_column(name, justify="right", no_wrap=True)
    if slowest is not None:
        table.add_column("x", justify="right")
    for name, result in rows:
        cells = [
            f"{result['searches_per_s']:,.0f}",
            f"{result['p50_us']:.1f}",
            f"{result['p99_us']:.1f}",
            f"{result['mean_results']:.1f}",
        ]
        if slowest is not None:
            cells.append(f"{result['searches_per_s'] / slowest:.1f}")
        table.add_row(name, result["transport"], result["why"], *cells)
    return table


# ---- the map and the report --------------------------------------------------------------------


async def _draw(demo: Demo, tree: RTreeClient) -> None:
    pieces: list[Any] = []
    async with tree.search_iter(QUERY) as stream:
        async for ids in stream:
            pieces.append(ids)
    hits = sorted(join_ids(pieces).tolist())
    shape = (await tree.stats()).tree
    level = min(1, shape.height - 1)
    nodes, leaves = await tree.level_rects(level), await tree.level_rects(0)
    path = demo.options.out / "map.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = [
        f"{shape.entries:,} segments, Natural Earth 1:10m (public domain)",
        f"R*-tree of {shape.height} levels, packed:",
        f"{shape.leaf_nodes:,} leaves under {len(nodes)} nodes",
        "",
        f"{len(demo.report['clients'])} client processes: "
        f"{demo.report['searches_per_s']:,.0f} searches/s together",
        *map(_fact, demo.report["alone"]),
    ]
    draw_map(path, demo_lines(), nodes, leaves, QUERY, hits, facts, TITLE)
    demo.report["map"] = {
        "file": str(path),
        "level": level,
        "nodes": len(nodes),
        "query": QUERY,
        "hits": len(hits),
    }


def _fact(run: dict[str, Any]) -> str:
    rate, median = run["searches_per_s"], run["p50_us"]
    return f"one client on {run['transport']}: {rate:,.0f}/s, median {median:.1f} us"


def _write(demo: Demo) -> None:
    path = demo.options.out / "report.json"
    path.write_text(json.dumps(demo.report, indent=2) + "\n", encoding="utf-8")
    demo.say(f"\n{demo.report['map']['file']}  the data, one level of the tree, one query")
    demo.say(f"{path}  all figures")
