"""``l5 ping URL``: connect, say which transport it became, and time requests to an echo server."""

from __future__ import annotations

import json
import math
from time import perf_counter_ns
from typing import Annotated, Any

import anyio
import typer

import l5
from l5._cli._run import run
from l5._errors import L5Error
from l5._selector import UpgradeReport

_WARM_UP_MAX = 100


def ping(
    url: Annotated[str, typer.Argument(help="Such as l5://localhost:7471.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many requests.")] = 1000,
    size: Annotated[int, typer.Option(min=0, help="Bytes of each request.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for all of it.")] = 60.0,
    token: Annotated[
        str | None, typer.Option(envvar="L5_TOKEN", help="Better given in L5_TOKEN.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time requests to a server that echoes them, such as l5 echo."""
    result = run(lambda: _measure(url, count, size, timeout, token))
    print(json.dumps(result) if as_json else describe(result))


async def _measure(
    url: str, count: int, size_bytes: int, timeout: float, token: str | None
) -> dict[str, Any]:
    payload = bytes(i & 0xFF for i in range(size_bytes))
    latencies_ns: list[int] = []
    try:
        with anyio.fail_after(timeout):
            async with await l5.connect(url, token=token) as connection:
                report = connection.upgrade_report
                for _ in range(min(count, _WARM_UP_MAX)):
                    await check_echo(connection, payload, f"ping {url}")
                started = perf_counter_ns()
                for _ in range(count):
                    before = perf_counter_ns()
                    await connection.request(payload)
                    latencies_ns.append(perf_counter_ns() - before)
                elapsed_ns = perf_counter_ns() - started
    except TimeoutError:
        done = f"{len(latencies_ns)} of {count} requests were answered"
        raise L5Error(f"{url}: {done} within {timeout:g} s") from None
    return summary(report, size_bytes, latencies_ns, elapsed_ns) | {"url": url}


async def check_echo(connection: l5.Connection, payload: bytes, command: str) -> None:
    """Raise `L5Error` unless the server of this connection echoes."""
    try:
        if await connection.request(payload) == payload:
            return
        does = "does not echo"
    except l5.RequestFailed as error:
        does = f"answers {error.remote_type}: {error.remote_message}"
    raise L5Error(f"{command}: its server {does}; wanted is one that echoes, such as l5 echo")


def summary(
    report: UpgradeReport, size_bytes: int, latencies_ns: list[int], elapsed_ns: int
) -> dict[str, Any]:
    """Sum up a run, as what JSON can hold."""
    ordered = sorted(latencies_ns)
    return {
        "transport": report.transport,
        "upgrade": report.as_dict(),
        "upgrade_report": str(report),
        "size_bytes": size_bytes,
        "requests": len(ordered),
        "requests_per_s": len(ordered) * 1e9 / max(1, elapsed_ns),
        "min_us": ordered[0] / 1e3,
        "p50_us": percentile(ordered, 50) / 1e3,
        "p99_us": percentile(ordered, 99) / 1e3,
        "max_us": ordered[-1] / 1e3,
    }


def percentile(ordered: list[int], percent: float) -> int:
    """Return the smallest value that at least ``percent`` of a sorted list do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def describe(result: dict[str, Any]) -> str:
    """Write a summary in two lines."""
    times = ", ".join(
        f"{name} {result[f'{name}_us']:.1f} us" for name in ("min", "p50", "p99", "max")
    )
    return (
        f"{result['url']}: {result['upgrade_report']}\n"
        f"{result['requests']} requests of {result['size_bytes']} bytes: {times};"
        f" {result['requests_per_s']:,.0f}/s"
    )
