"""``catfish load | search | nearest | count | stats``: one question to a server, one answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console
from rich.table import Table

from catfish_app._cli_run import (
    By,
    Json,
    SearchMode,
    Token,
    Url,
    parse_numbers,
    progress_bar,
    read,
    run,
)
from catfish_app._client import RTreeClient

Box = Annotated[str, typer.Option("--bbox", help="xmin,ymin,xmax,ymax", metavar="X0,Y0,X1,Y1")]
Limit = Annotated[int, typer.Option(min=0, help="Print at most so many ids; 0: all.")]


def load(
    url: Url,
    source: Annotated[str, typer.Argument(metavar="FILE", help="Rectangles, or 'demo'.")],
    layer: Annotated[str | None, typer.Option(help="Which layer of a GIS file.")] = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Load a file into a server's tree: NumPy, CSV, GeoJSON, FlatGeobuf, GeoParquet, Shapefile."""

    async def main() -> dict[str, Any]:
        console = Console(stderr=True)
        table = read(source, layer, console)
        async with await RTreeClient.connect(url, token=token) as tree:
            with progress_bar(console) as bar:
                task = bar.add_task("loading", total=len(table.rects))
                packed = await tree.load(
                    table.rects,
                    table.ids,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )
            entries = (await tree.stats()).tree.entries
        return {"loaded": len(table.rects), "packed": packed, "entries": entries}

    facts = run(main)
    how = "packed" if facts["packed"] else "inserted one by one"
    _print(
        as_json, facts, f"{facts['loaded']:,} rectangles {how}; the tree has {facts['entries']:,}"
    )


def search(
    url: Url,
    bbox: Box,
    limit: Limit = 20,
    mode: By = SearchMode.adaptive,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Print the ids of all rectangles that meet a box."""
    rect = parse_numbers(bbox, (4,), "--bbox")

    async def main() -> list[int]:
        async with await RTreeClient.connect(url, mode=mode.value, token=token) as tree:
            return sorted((await tree.search(rect)).tolist())

    ids = run(main)
    shown = ids[: limit or None]
    lines = [f"{len(ids):,} found", *map(str, shown)]
    if len(shown) < len(ids):
        lines.append(f"... {len(ids) - len(shown):,} more (--limit 0 prints all)")
    _print(as_json, {"count": len(ids), "ids": ids}, "\n".join(lines))


def nearest(
    url: Url,
    point: Annotated[str, typer.Option("--to", help="x,y or a box", metavar="X,Y")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 1,
    mode: By = SearchMode.adaptive,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Print the ids of the entries nearest to a point or box, and their distances."""
    where = parse_numbers(point, (2, 4), "--to")

    async def main() -> list[dict[str, Any]]:
        async with await RTreeClient.connect(url, mode=mode.value, token=token) as tree:
            ids, distances = await tree.nearest(where, k)
            pairs = zip(ids.tolist(), distances.tolist(), strict=True)
            return [{"id": id, "distance": distance} for id, distance in pairs]

    found = run(main)
    _print(as_json, found, "\n".join(f"{hit['id']}  {hit['distance']:g}" for hit in found))


def count(
    url: Url,
    bbox: Box,
    mode: By = SearchMode.adaptive,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Print how many rectangles meet a box."""
    rect = parse_numbers(bbox, (4,), "--bbox")

    async def main() -> int:
        async with await RTreeClient.connect(url, mode=mode.value, token=token) as tree:
            return await tree.count(rect)

    found = run(main)
    _print(as_json, {"count": found}, f"{found:,}")


def stats(url: Url, token: Token = None, as_json: Json = False) -> None:
    """Print the shape of a server's tree, and how busy the server is."""

    async def main() -> dict[str, Any]:
        async with await RTreeClient.connect(url, token=token) as tree:
            report = tree.connection.upgrade_report
            answer, bounds = await tree.stats(), await tree.bounds()
        return attrs.asdict(answer) | {"bounds": bounds, "connection": report.as_dict()}

    facts = run(main)
    if as_json:
        print(json.dumps(facts))
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    tree = facts["tree"]
    bounds = facts["bounds"]
    requests = {k: n for k, n in facts["requests"].items() if k not in ("stats", "bounds")}
    lines = {
        "entries": f"{tree['entries']:,}",
        "levels": str(tree["height"]),
        "nodes": f"{tree['leaf_nodes']:,} leaves, {tree['inner_nodes']:,} inner,"
        f" {tree['free_nodes']:,} free of {tree['capacity_nodes']:,}",
        "fill": f"leaves {tree['leaf_fill']:.0%}, inner {tree['inner_fill']:.0%}",
        "arena": f"{tree['arena_bytes'] / 2**20:,.1f} MiB (committed as it is used)",
        "bounds": "none" if bounds is None else "  ".join(f"{side:g}" for side in bounds),
        "kernel": facts["kernel"],
        "workers": str(facts["workers"] or "none: Python answers"),
        "connections": str(facts["connections"]),
        "busy": f"{facts['busy_share']:.1%}",
        "up": f"{facts['uptime_s']:,.1f} s",
        "requests": ", ".join(f"{n:,} {name}" for name, n in requests.items()) or "none",
        "this client": facts["connection"]["transport"],
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in lines.items():
        table.add_row(name, text)
    Console(highlight=False).print(table)


def _print(as_json: bool, facts: Any, text: str) -> None:
    print(json.dumps(facts) if as_json else text)
