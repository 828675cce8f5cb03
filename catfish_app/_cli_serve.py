"""``catfish serve URL...``: an R-tree for other processes, until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Annotated, Any

import anyio
import attrs
import typer
from rich.console import Console

from catfish_app._cli_run import USAGE_STATUS, Json, Token, fail, read, run
from catfish_app._keeper import SnapshotKeeper
from catfish_app._metrics import serve_metrics
from catfish_app._place import check_place, parse_place
from catfish_app._rtree import RTree
from catfish_app._server import TreeServer, serve_tree
from catfish_app._snapshot import Saved


class Mode(StrEnum):
    """What a worker does when there is nothing to do."""

    poll = "poll"
    event = "event"
    adaptive = "adaptive"


def serve(
    urls: Annotated[list[str], typer.Argument(help="Where to listen.")],
    source: Annotated[
        str | None, typer.Option("--load", help="A file of rectangles to begin with, or 'demo'.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Which layer of a GIS file.")] = None,
    capacity: Annotated[
        int, typer.Option(min=1, help="Rectangles that always fit; raised to those loaded.")
    ] = 1_000_000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Threads that answer in C.")] = 1,
    mode: Annotated[
        Mode, typer.Option(help="Idle workers spin, sleep, or spin a little and then sleep.")
    ] = Mode.adaptive,
    python: Annotated[bool, typer.Option(help="Answer in Python, without C workers.")] = False,
    share: Annotated[
        bool,
        typer.Option(help="Let clients search the tree by themselves; commits all its memory."),
    ] = True,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Begin with this file if it is there; keep it current."),
    ] = None,
    every: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="Seconds between snapshots; 0: only when it ends."),
    ] = 60.0,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Show a map of the tree to browsers (0: any port)."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Metrics for Prometheus (with --http: /metrics)."),
    ] = None,
    token: Token = None,
    insecure: Annotated[
        bool, typer.Option(help="Listen beyond loopback without a token or TLS.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve an R-tree; SIGTERM and SIGINT let running requests finish."""
    options: dict[str, Any] = {
        "workers": workers,
        "mode": mode.value,
        "python": python,
        "share": share,
        "token": token,
        "insecure": insecure,
    }
    try:
        for place in filter(None, (http, metrics)):
            parse_place(place)
    except ValueError as error:
        fail(str(error), USAGE_STATUS)
    report = _JsonReport() if as_json else _Report()
    plan = _Plan(urls, options, source, layer, capacity, snapshot, every, http, metrics)
    run(lambda: _serve(plan, report))


@attrs.frozen
class _Plan:
    """What the command line asks for."""

    urls: list[str]
    options: dict[str, Any]
    """Of `serve_tree`."""
    source: str | None
    layer: str | None
    capacity: int
    snapshot: str | None
    every_s: float
    http: str | None
    metrics: str | None


class _Report:
    """Tells a person what happens."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False)

    def listening(self, server: TreeServer, pages: dict[str, str]) -> None:
        kind = "in Python" if server.native is None else f"by {server.native.workers} C worker(s)"
        self.console.print(f"{len(server.tree):,} rectangles, served {kind}", soft_wrap=True)
        if server.not_shared:
            print(f"clients do not search by themselves: {server.not_shared}", flush=True)
        for url in server.urls:
            # Plain: a URL may look like markup, and programs read these lines.
            print(f"listening on {url}", flush=True)
        for what, url in pages.items():
            print(f"{what} at {url}", flush=True)

    def stopping(self, name: str) -> None:
        print(f"{name}: finishing what runs", flush=True)

    def ended(self, server: TreeServer) -> None:
        print(f"{server.requests:,} requests answered", flush=True)

    def saved(self, path: str, saved: Saved) -> None:
        print(f"{path}: {saved.entries:,} rectangles kept", flush=True)


class _JsonReport(_Report):
    """Tells a program: one object a line."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def listening(self, server: TreeServer, pages: dict[str, str]) -> None:
        workers = 0 if server.native is None else server.native.workers
        facts = {"urls": server.urls, "entries": len(server.tree), "workers": workers}
        self._say("listening", **facts, not_shared=server.not_shared, **pages)

    def stopping(self, name: str) -> None:
        self._say("stopping", signal=name)

    def ended(self, server: TreeServer) -> None:
        self._say("ended", requests=server.requests)

    def saved(self, path: str, saved: Saved) -> None:
        self._say("saved", path=path, entries=saved.entries, size_bytes=saved.size_bytes)

    @staticmethod
    def _say(event: str, **facts: Any) -> None:
        print(json.dumps({"event": event} | facts), flush=True)


def make_tree(plan: _Plan, console: Console) -> RTree:
    """Build the tree that is to be served."""
    if plan.snapshot is not None and os.path.exists(plan.snapshot):
        tree = RTree.open(plan.snapshot, capacity=plan.capacity)
        instead = "" if plan.source is None else f" ({plan.source} is not loaded again)"
        console.print(f"{plan.snapshot}: {len(tree):,} rectangles{instead}", soft_wrap=True)
        return tree
    if plan.source is None:
        return RTree(capacity=plan.capacity)
    table = read(plan.source, plan.layer, console)
    with console.status("indexing"):
        return RTree.bulk(table.rects, table.ids, capacity=plan.capacity)


async def _serve(plan: _Plan, report: _Report) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        tree = make_tree(plan, report.console)
        keeper = None if plan.snapshot is None else SnapshotKeeper(tree, plan.snapshot)
        if keeper is not None:
            await keeper.save()  # what cannot be written is known now, and not when it is needed
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serve_tree(tree, *plan.urls, **plan.options))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            if keeper is not None and plan.every_s:
                tasks.start_soon(keeper.keep_saving, plan.every_s)
            pages = await _pages(plan, server, keeper, stack)
            report.listening(server, pages)
            async for number in signals:
                report.stopping(signal.Signals(number).name)
                break
        report.ended(server)
        if keeper is not None:
            report.saved(keeper.path, await keeper.save())


async def _pages(
    plan: _Plan, server: TreeServer, keeper: SnapshotKeeper | None, stack: AsyncExitStack
) -> dict[str, str]:
    """Begin to serve what browsers and Prometheus want; return where."""
    pages: dict[str, str] = {}
    insecure = plan.options["insecure"]
    try:
        if plan.http is not None:
            from catfish_app.map import serve_map

            token = plan.options["token"]
            shown = serve_map(server, plan.http, insecure=insecure, keeper=keeper, token=token)
            pages["map"] = await stack.enter_async_context(shown)
        if plan.metrics is not None:
            host, port = parse_place(plan.metrics)
            check_place(host, port, insecure=insecure)
            pages["metrics"] = stack.enter_context(serve_metrics(server, host, port, keeper))
    except ModuleNotFoundError as error:
        raise LookupError(
            f"--http and --metrics need {error.name}: pip install 'l5net[http,prometheus]'"
        ) from None
    return pages
