"""``l5 top URL|PID``: what the connections of a running process do, once a second."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

import l5
from l5._cli._run import run
from l5._errors import L5Error
from l5._latency import Histogram
from l5._status import Watcher, peer_of


def top(
    target: Annotated[str, typer.Argument(help="A process id, or a server's URL on this host.")],
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between refreshes.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Show one interval and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON each time.")] = False,
    token: Annotated[
        str | None, typer.Option(envvar="L5_TOKEN", help="(URL) better given in L5_TOKEN.")
    ] = None,
) -> None:
    """Look into a process that runs with L5_STATUS=1 or has called l5.open_status()."""

    async def work() -> None:
        _watch(await find(target, token), interval, once, as_json)

    run(work)


async def find(target: str, token: str | None) -> int:
    """Return the process id that is meant; of a URL, that of the server that answers there."""
    if target.isdigit():
        return int(target)
    return await _server_of(target, token)


async def _server_of(url: str, token: str | None) -> int:
    async with await l5.connect(url, token=token) as connection:
        if connection.peer.pid:
            return connection.peer.pid
        if connection.transport != "shm":
            raise L5Error(
                f"{url}: the server is not known to be on this host ({connection.upgrade_report});"
                " run l5 top there, with its process id"
            )
        with socket.socket(fileno=os.dup(connection._session.channel.fileno())) as sock:
            return peer_of(sock)[0]


def _watch(pid: int, interval: float, once: bool, as_json: bool) -> None:
    watcher = Watcher(pid)
    try:
        before = watcher.read()
        if as_json or once:
            while True:
                time.sleep(interval)
                after = watcher.read()
                if as_json:
                    print(json.dumps(summarise(before, after)), flush=True)
                else:
                    Console(markup=False, highlight=False).print(screen(summarise(before, after)))
                before = after
                if once:
                    return
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                after = watcher.read()
                live.update(screen(summarise(before, after)), refresh=True)
                before = after
    except (EOFError, KeyboardInterrupt) as end:
        if isinstance(end, EOFError) and once:
            raise L5Error(str(end)) from None
    finally:
        watcher.close()


# ---- figures -----------------------------------------------------------------------------------


def summarise(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what happened between two snapshots, as rates and shares."""
    seconds = max(1e-9, (after["time_ns"] - before["time_ns"]) / 1e9)
    old = {connection["number"]: connection for connection in before["connections"]}
    rows = [_row(old.get(c["number"]), c, seconds) for c in after["connections"]]
    rows += _service_rows(before["servers"], after["servers"], seconds)
    return {
        "pid": after["pid"],
        "command": after["command"],
        "seconds": seconds,
        **_waits(before["loops"], after["loops"], seconds, blocking=False),
        "blocking": _waits(before["loops"], after["loops"], seconds, blocking=True),
        "servers": after["servers"],
        "connections": rows,
    }


_WAITS = ("spun", "yielded", "slept")


def _waits(
    before: list[dict[str, Any]], after: list[dict[str, Any]], seconds: float, *, blocking: bool
) -> dict[str, float]:
    """Return how many there are of one kind, and what share of their time they waited."""
    old = {loop["number"]: loop for loop in before}
    loops = [loop for loop in after if loop["blocking"] is blocking]
    shares = {
        f"{name}_share": sum(
            new[f"{name}_ns"] - old.get(new["number"], {}).get(f"{name}_ns", 0) for new in loops
        )
        / (seconds * 1e9 * max(1, len(loops)))
        for name in _WAITS
    }
    return {"loops": len(loops), **shares}


def _row(old: dict[str, Any] | None, new: dict[str, Any], seconds: float) -> dict[str, Any]:
    now, was = new["statistics"], old["statistics"] if old else None

    def rate(*names: str) -> float:
        return sum((now[n] or 0) - ((was[n] or 0) if was else 0) for n in names) / seconds

    latencies = Histogram.from_sparse(new["latency_buckets"])
    if old is not None:
        latencies = latencies.since(Histogram.from_sparse(old["latency_buckets"]))
    p50, p99 = latencies.percentile_ns(50), latencies.percentile_ns(99)
    ring = now["ring"]
    return {
        "number": new["number"],
        "role": new["role"],
        "transport": now["transport"],
        "peer": new["peer"],
        "upgrade": new["upgrade"],
        "requests_per_s": rate("requests_sent", "requests_answered"),
        "sent_bytes_per_s": rate("bytes_sent"),
        "received_bytes_per_s": rate("bytes_received"),
        "p50_us": None if p50 is None else p50 / 1e3,
        "p99_us": None if p99 is None else p99 / 1e3,
        "in_flight": now["in_flight"],
        "space_waits": now["space_waits"],
        "space_waits_per_s": rate("space_waits"),
        "ring_sent_share": ring["sent"] / ring["size"] if ring else None,
        "ring_waiting_share": ring["waiting"] / ring["size"] if ring else None,
    }


def _service_rows(
    before: list[dict[str, Any]], after: list[dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each native service: its threads hold connections, and count them as one."""
    old = {tuple(server["urls"]): server["service"] for server in before}
    rows: list[dict[str, Any]] = []
    for server in after:
        now, was = server["service"], old.get(tuple(server["urls"]))
        if now is not None:
            requests = now["requests"] - (was["requests"] if was else 0)
            rows.append(
                dict.fromkeys(_ROW)
                | {"role": "service", "transport": "shm", "requests_per_s": requests / seconds}
                | {"peer": f"{now['connections']} connections, {now['busy_share']:.0%} busy"}
            )
    return rows


_ROW = (
    *("number", "role", "transport", "peer", "upgrade", "requests_per_s", "sent_bytes_per_s"),
    *("received_bytes_per_s", "p50_us", "p99_us", "in_flight", "space_waits", "space_waits_per_s"),
    *("ring_sent_share", "ring_waiting_share"),
)


# ---- the screen --------------------------------------------------------------------------------


def screen(facts: dict[str, Any]) -> Group:
    """Lay the figures out."""
    head = Text(f"process {facts['pid']}: {facts['command']}\n", style="bold")
    lines = [head]
    blocking = facts["blocking"]
    for who, waits in (("event loops", facts), ("connections without a loop", blocking)):
        if waits["loops"] or (waits is facts and not blocking["loops"]):
            shares = ", ".join(f"{word} {waits[f'{word}_share']:.1%}" for word in _WAITS)
            lines.append(Text(f"{who} ({waits['loops']}): {shares} of the time\n"))
    for server in facts["servers"]:
        counts = server["statistics"]
        lines.append(
            Text(
                f"server {' '.join(server['urls'])}: {counts['connections']} connections,"
                f" {counts['requests']:,} requests, {counts['failed']} failed,"
                f" {counts['cancelled']} cancelled, {counts['running']} running"
            )
        )
    return Group(*lines, _Rows(facts["connections"]))


_COLUMNS = ("#", "role", "transport", "peer", "requests/s", "p50 us", "p99 us")
_MORE_COLUMNS = ("sent/s", "received/s", "ring out", "ring in", "waits", "open")
_LEFT = ("role", "transport", "peer")
_PEER = 16
"""Characters that a peer has in a line; what is longer goes on in the next one."""


@attrs.frozen
class _Rows:
    """The connections; of the columns, those from the left that there is room for."""

    rows: list[dict[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        names = (*_COLUMNS, *_MORE_COLUMNS)
        rows = [_cells(row) for row in sorted(self.rows, key=lambda row: -row["requests_per_s"])]
        table = Table(box=None, pad_edge=False, header_style="bold")
        left = options.max_width
        for at, name in enumerate(names):
            width = max(len(name), *(len(row[at]) for row in rows), 0)
            left -= min(width, _PEER) if name == "peer" else width
            if left < 0:
                break
            left -= 2
            table.add_column(
                name,
                justify="left" if name in _LEFT else "right",
                no_wrap=name != "peer",
                overflow="fold",
            )
        for row in rows:
            table.add_row(*map(Text, row[: len(table.columns)]))
        yield table


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        _count(row["number"]),
        row["role"],
        row["transport"],
        row["peer"],
        f"{row['requests_per_s']:,.0f}",
        _decimal(row["p50_us"]),
        _decimal(row["p99_us"]),
        _bytes(row["sent_bytes_per_s"]),
        _bytes(row["received_bytes_per_s"]),
        _share(row["ring_sent_share"]),
        _share(row["ring_waiting_share"]),
        _count(row["space_waits"]),
        _count(row["in_flight"]),
    ]


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
