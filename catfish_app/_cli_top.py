"""``catfish top URL``: what a served tree does, once a second."""

from __future__ import annotations

import json
import time
from typing import Annotated

import anyio
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from catfish_app._cli_run import By, Json, SearchMode, Token, Url, run
from catfish_app._client import RTreeClient
from catfish_app._monitor import PROBES, Monitor, Sample, mode_of
from catfish_app._wire import ServiceStats

SHAPE_EVERY_S = 10.0
"""How often every node is visited, to count them."""
BARS = " ▁▂▃▄▅▆▇█"
SPARKS = 40
PANEL_COLUMNS = 38
"""What the panel of the load takes beside its sparks."""


def top(
    url: Url,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 1.0,
    probes: Annotated[
        int, typer.Option(min=0, max=1000, help="Searches of its own a look; 0: none.")
    ] = PROBES,
    mode: By = SearchMode.adaptive,
    once: Annotated[bool, typer.Option(help="Show one interval and leave.")] = False,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show requests, latencies, who searches, how busy the server is, and the tree's shape."""

    async def main() -> None:
        async with await RTreeClient.connect(url, mode=mode.value, token=token) as tree:
            monitor = Monitor(tree, probes=probes)
            await monitor.start()
            if once or as_json:
                await _print(monitor, interval, url, once, as_json)
            else:
                await _watch(monitor, interval, url)

    try:
        run(main)
    except KeyboardInterrupt:
        pass


async def _print(monitor: Monitor, interval: float, url: str, once: bool, as_json: bool) -> None:
    while True:
        await anyio.sleep(interval)
        sample = await monitor.sample()
        if as_json:
            print(json.dumps(sample.as_dict() | {"mode": mode_of(monitor.client)}), flush=True)
        else:
            shape = await monitor.client.stats()
            console = Console(highlight=False)
            console.print(Screen(monitor, shape, url).render(sample, console.width))
        if once:
            return


async def _watch(monitor: Monitor, interval: float, url: str) -> None:
    with Live(screen=True, auto_refresh=False) as live:
        screen: Screen | None = None
        counted_at = 0.0
        while True:
            await anyio.sleep(interval)
            sample = await monitor.sample()
            if screen is None or time.monotonic() - counted_at > SHAPE_EVERY_S:
                screen = Screen(monitor, await monitor.client.stats(), url)
                counted_at = time.monotonic()
            live.update(screen.render(sample, live.console.width), refresh=True)


class Screen:
    """Lays samples out."""

    def __init__(self, monitor: Monitor, shape: ServiceStats, url: str) -> None:
        self._monitor = monitor
        self._shape = shape
        self._url = url

    def render(self, sample: Sample, width: int) -> RenderableType:
        """Return the whole screen; on a narrow one the panels stand below each other."""
        report = self._monitor.client.connection.upgrade_report
        head = Text.assemble(
            ("catfish ", "bold cyan"), (self._url, "bold"), f"   {report}\n", style="default"
        )
        beside = width // 2 - PANEL_COLUMNS >= SPARKS // 2
        room = (width // 2 if beside else width) - PANEL_COLUMNS
        load, tree = self._load(sample, max(1, min(room, SPARKS))), self._tree(sample)
        if not beside:
            return Group(head, load, tree, self._operations(sample))
        columns = Table.grid(expand=True, padding=(0, 1))
        columns.add_column(ratio=1)
        columns.add_column(ratio=1)
        columns.add_row(load, tree)
        return Group(head, columns, self._operations(sample))

    def _load(self, sample: Sample, bars: int) -> Panel:
        history = list(self._monitor.history)
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(justify="right", no_wrap=True)
        lines.add_column(style="cyan", no_wrap=True)
        rates = [past.rate for past in history]
        lines.add_row("requests", f"{sample.rate:,.0f}/s", sparks(rates, bars))
        latencies = [past.p50_us or 0.0 for past in history]
        lines.add_row("own search p50", microseconds(sample.p50_us), sparks(latencies, bars))
        lines.add_row("own longest", microseconds(sample.max_us), "")
        busy = ProgressBar(total=1.0, completed=sample.busy_share, width=min(bars, 20))
        lines.add_row("busy", f"{sample.busy_share:.0%}", busy)
        lines.add_row("own searches", mode_of(self._monitor.client), paths_of(sample))
        workers = str(sample.workers or "Python")
        connections = f"{sample.connections} connection{'' if sample.connections == 1 else 's'}"
        lines.add_row("workers", workers, connections)
        return Panel(lines, title="load", title_align="left", border_style="dim")

    def _tree(self, sample: Sample) -> Panel:
        tree = self._shape.tree
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(no_wrap=True)
        used = sample.capacity_nodes - sample.free_nodes
        lines.add_row("rectangles", f"{sample.entries:,}")
        lines.add_row("levels", str(sample.height))
        lines.add_row("leaves", f"{tree.leaf_nodes:,}, {tree.leaf_fill:.0%} full")
        lines.add_row("inner nodes", f"{tree.inner_nodes:,}, {tree.inner_fill:.0%} full")
        lines.add_row("arena", f"{used:,} of {sample.capacity_nodes:,} nodes")
        lines.add_row("up", f"{sample.uptime_s:,.0f} s, kernel {self._shape.kernel}")
        return Panel(lines, title="tree", title_align="left", border_style="dim")

    def _operations(self, sample: Sample) -> Table:
        table = Table(box=None, header_style="dim", pad_edge=False)
        rates = {name: rate for name, rate in sample.requests_per_s.items() if rate > 0}
        table.add_column("of all clients, by the server, 1/s")
        for name in rates:
            table.add_column(name, justify="right")
        table.add_row("", *(f"{rate:,.0f}" for rate in rates.values()))
        return table


def paths_of(sample: Sample) -> str:
    """Say how many of the monitor's searches each path served."""
    return ", ".join(f"{count} {path}" for path, count in sample.paths.items()) or "no searches"


def microseconds(value: float | None) -> str:
    """Write a latency."""
    return "-" if value is None else f"{value:,.1f} us"


def sparks(values: list[float], bars: int) -> str:
    """Draw the last values as bars, the greatest as high as can be."""
    shown = values[-bars:]
    most = max(shown, default=0.0) or 1.0
    return "".join(BARS[round(max(0.0, value) / most * (len(BARS) - 1))] for value in shown)
