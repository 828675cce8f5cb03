"""``catfish serve URL...``: an R-tree for other processes, until it is told to stop."""

from __future__ import annotations

import json
import signal
from enum import StrEnum
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console

from catfish_app._cli_run import Json, Token, read, run
from catfish_app._rtree import RTree
from catfish_app._server import TreeServer, serve_tree


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
        "token": token,
        "insecure": insecure,
    }
    report = _JsonReport() if as_json else _Report()
    run(lambda: _serve(urls, source, layer, capacity, options, report))


class _Report:
    """Tells a person what happens."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False)

    def listening(self, server: TreeServer) -> None:
        kind = "in Python" if server.native is None else f"by {server.native.workers} C worker(s)"
        self.console.print(f"{len(server.tree):,} rectangles, served {kind}", soft_wrap=True)
        for url in server.urls:
            # Plain: a URL may look like markup, and programs read these lines.
            print(f"listening on {url}", flush=True)

    def stopping(self, name: str) -> None:
        print(f"{name}: finishing what runs", flush=True)

    def ended(self, server: TreeServer) -> None:
        print(f"{server.requests:,} requests answered", flush=True)


class _JsonReport(_Report):
    """Tells a program: one object a line."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def listening(self, server: TreeServer) -> None:
        workers = 0 if server.native is None else server.native.workers
        self._say("listening", urls=server.urls, entries=len(server.tree), workers=workers)

    def stopping(self, name: str) -> None:
        self._say("stopping", signal=name)

    def ended(self, server: TreeServer) -> None:
        self._say("ended", requests=server.requests)

    @staticmethod
    def _say(event: str, **facts: Any) -> None:
        print(json.dumps({"event": event} | facts), flush=True)


def make_tree(source: str | None, layer: str | None, capacity: int, console: Console) -> RTree:
    """Build the tree that is to be served."""
    if source is None:
        return RTree(capacity=capacity)
    table = read(source, layer, console)
    with console.status("indexing"):
        return RTree.bulk(table.rects, table.ids, capacity=capacity)


async def _serve(
    urls: list[str],
    source: str | None,
    layer: str | None,
    capacity: int,
    options: dict[str, Any],
    report: _Report,
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        tree = make_tree(source, layer, capacity, report.console)
        async with serve_tree(tree, *urls, **options) as server:
            report.listening(server)
            async for number in signals:
                report.stopping(signal.Signals(number).name)
                break
        report.ended(server)
