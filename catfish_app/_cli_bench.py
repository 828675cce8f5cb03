"""``catfish bench URL``: how fast one client can search."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from catfish_app._cli_run import By, Json, SearchMode, Token, Url, run
from catfish_app._client import RTreeClient
from catfish_app._measure import EDGE_MAX, EDGE_MIN, make_windows, measure

WINDOWS = 20_000


def bench(
    url: Url,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to search.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the windows.")] = 1,
    edge: Annotated[
        float | None,
        typer.Option(min=0, help="Edge of the windows as a share of the extent (mixed if none)."),
    ] = None,
    mode: By = SearchMode.adaptive,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Search random windows, most of them where data is, one at a time."""
    edges = (EDGE_MIN, EDGE_MAX) if edge is None else (edge or 1e-12, edge or 1e-12)

    async def main() -> dict[str, Any]:
        async with await RTreeClient.connect(url, mode=mode.value, token=token) as tree:
            bounds = await tree.bounds()
            if bounds is None:
                raise LookupError("the tree is empty: there is nothing to search (catfish load)")
            windows = make_windows(bounds, await tree.level_rects(0), WINDOWS, seed, edges)
            measured = await measure(tree, windows, seconds)
            after = await tree.stats()
            report = tree.connection.upgrade_report
        facts = measured.as_dict() | {"busy_share": after.busy_share, "kernel": after.kernel}
        return facts | {"transport": report.transport, "upgrade_report": str(report)}

    facts = run(main)
    print(json.dumps(facts) if as_json else describe(facts))


def describe(facts: dict[str, Any]) -> str:
    """Write the figures in two lines."""
    return (
        f"{facts['upgrade_report']}\n"
        f"{facts['searches_per_s']:,.0f} searches/s, p50 {facts['p50_us']:.1f} us, "
        f"p99 {facts['p99_us']:.1f} us, {facts['mean_results']:.1f} results each, "
        f"server busy {facts['busy_share']:.0%}"
    )
