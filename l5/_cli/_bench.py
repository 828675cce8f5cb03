"""``l5 bench URL``: latency, throughput and bandwidth against any server that echoes."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import l5
from l5._cli._ping import check_echo
from l5._cli._run import run
from l5._latency import Histogram, bucket_begin_ns, measure

_BAR_WIDTH = 40
_ROWS_MAX = 16
Advance = Callable[[float], None]


def bench(
    url: Annotated[str, typer.Argument(help="Such as l5://localhost:7471.")],
    seconds: Annotated[float, typer.Option(min=0.05, help="For each measurement.")] = 2.0,
    size: Annotated[int, typer.Option(min=0, help="Bytes of each small request.")] = 64,
    large: Annotated[int, typer.Option(min=1, help="Bytes of each large request.")] = 65536,
    tasks: Annotated[int, typer.Option(min=1, max=256, help="Requests in flight.")] = 16,
    token: Annotated[
        str | None, typer.Option(envvar="L5_TOKEN", help="Better given in L5_TOKEN.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a server that echoes, such as l5 echo: one by one, many in flight, large."""
    quiet = as_json or seconds < 1
    with Progress(transient=True, disable=quiet, console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=3 * seconds)
        result = run(
            lambda: _measure(
                url, token, seconds, size, large, tasks, lambda s: progress.advance(bar, s)
            )
        )
    if as_json:
        print(json.dumps(result))
    else:
        show(result)


async def _measure(
    url: str,
    token: str | None,
    seconds: float,
    size: int,
    large: int,
    tasks: int,
    advance: Advance,
) -> dict[str, Any]:
    async with await l5.connect(url, token=token) as connection:
        for length in (size, large):
            await check_echo(connection, bytes(i & 0xFF for i in range(length)), f"bench {url}")
        one, histogram = await _one_by_one(connection, bytes(size), seconds, advance)
        many = await _many(connection, bytes(size), seconds, tasks, advance)
        bulk = await _many(connection, bytes(large), seconds, 1, advance)
        return {
            "url": url,
            "transport": connection.transport,
            "upgrade_report": str(connection.upgrade_report),
            "size_bytes": size,
            "large_bytes": large,
            "tasks": tasks,
            "requests_per_s": one,
            "pipelined_per_s": many,
            "bandwidth_bytes_per_s": 2 * bulk * large,
            "latency_us": {
                f"p{percent:g}": (histogram.percentile_ns(percent) or 0) / 1e3
                for percent in (50, 90, 99, 99.9, 100)
            },
            "latency_buckets": histogram.sparse(),
        }


async def _one_by_one(
    connection: l5.Connection, payload: bytes, seconds: float, advance: Advance
) -> tuple[float, Histogram]:
    session = connection._session
    measure(session, True)
    rate = await _many(connection, payload, seconds, 1, advance)
    assert session.watch is not None
    histogram = session.watch.histogram()
    measure(session, False)
    return rate, histogram


async def _many(
    connection: l5.Connection, payload: bytes, seconds: float, tasks: int, advance: Advance
) -> float:
    """Return answers per second, both ways being counted once."""
    done = 0
    began = told = perf_counter()
    ends = began + seconds

    async def ask() -> None:
        nonlocal done, told
        while True:
            await connection.request(payload)
            done += 1
            if done % 64 == 0 or len(payload) > 4096:
                now = perf_counter()
                if now - told > 0.1:
                    advance(now - told)
                    told = now
                if now >= ends:
                    return

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(ask)
    advance(max(0.0, ends - told))
    return done / (perf_counter() - began)


def show(result: dict[str, Any]) -> None:
    """Print the figures and the histogram."""
    console = Console(markup=False, highlight=False)
    console.print(f"{result['url']}: {result['upgrade_report']}\n")
    table = Table("what", "result", box=None, pad_edge=False, header_style="bold")
    one, size = result["requests_per_s"], result["size_bytes"]
    table.add_row(f"one request at a time, {size} bytes", f"{one:,.0f}/s")
    many = f"{result['pipelined_per_s']:,.0f}/s"
    table.add_row(f"{result['tasks']} requests in flight, {size} bytes", many)
    bandwidth = f"{result['bandwidth_bytes_per_s'] / 1e6:,.0f} MB/s"
    table.add_row(f"{result['large_bytes']} bytes there and back", bandwidth)
    for name, value in result["latency_us"].items():
        table.add_row("longest" if name == "p100" else f"latency {name}", f"{value:,.1f} us")
    console.print(table)
    console.print()
    for begin_us, count, bar in histogram_rows(result["latency_buckets"]):
        console.print(f"{begin_us:>10,.1f} us {count:>9,} {bar}")


def histogram_rows(buckets: dict[int, int]) -> list[tuple[float, int, str]]:
    """Return (lower bound in us, count, bar) by powers of two."""
    octaves: dict[int, int] = {}
    for bucket, count in buckets.items():
        octaves[int(bucket) // 8] = octaves.get(int(bucket) // 8, 0) + count
    most = max(octaves.values(), default=1)
    first, last = min(octaves, default=0), max(octaves, default=0)
    return [
        (
            bucket_begin_ns(octave * 8) / 1e3,
            octaves.get(octave, 0),
            "█" * -(-octaves.get(octave, 0) * _BAR_WIDTH // most),
        )
        for octave in range(first, min(last, first + _ROWS_MAX) + 1)
    ]
