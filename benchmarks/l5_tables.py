"""The tables and the scale-out figure of L5's evaluation: ``python -m benchmarks l5-tables``.

Table I is YCSB-C on one host, one client with one lookup outstanding; Table II is the scan of the
whole table on one host; Tables III and IV are the same between two hosts; Figure 10 is the rate of
all lookups together with more and more clients, with one and with two threads at the server, and
with 200 open connections of which four are used. Figure 11 is YCSB-C beside other frameworks, as
they go between hosts, over the first RDMA device too if there is one.

    host A  $ python -m benchmarks l5-tables --serve l5://192.0.2.1:7471 --token SECRET
    host B  $ python -m benchmarks l5-tables --connect l5://192.0.2.1:7471 --token SECRET

measures the tables of two hosts over every transport that they have in common; without either,
all is on this host. The table has 100,000 rows of 1,000 bytes unless told otherwise.
"""

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs

import l5
from benchmarks import _report
from benchmarks._cases import BANDWIDTH, Case, Peer, Size, left_out, measure
from benchmarks._harness import Metric, Row
from benchmarks._postgres import Unavailable, cluster
from benchmarks.messaging_peers import native_echo, ycsb_ours
from benchmarks.messaging_peers.pair import Spec, WorkerFailed
from benchmarks.messaging_peers.ycsb_postgres import fill
from l5 import rdma

ROWS = 100_000
CLIENTS = (1, 2, 4, 8)
OPEN, ACTIVE = 200, 4
"""Connections, and those of them that are used: L5's case of many sessions with few in a burst."""
LOOKUPS = Metric("rate", "lookups", "1/s")
FULL = Size(5, 2, 0.5, CLIENTS, CLIENTS, 0, 0)
QUICK = Size(1, 0, 0.02, (2,), (2,), 0, 0)
WHAT = ("transfer",)
METRICS = {"lookups": LOOKUPS, "scan": BANDWIDTH}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks l5-tables", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the table ({ROWS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there as well")
    parser.add_argument("--token", help="what the two hosts tell each other")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--serve", metavar="URL", help="serve the table for another host")
    role.add_argument("--connect", metavar="URL", help="measure against a table served elsewhere")
    chosen = parser.parse_args(arguments)
    rows = 1000 if chosen.quick else chosen.rows
    size = QUICK if chosen.quick else FULL
    with tempfile.TemporaryDirectory(prefix="l5-bench-") as folder, _report.Report() as report:
        try:
            library = native_echo.build(folder, "ycsb")
        except native_echo.Unavailable as reason:
            print(f"l5-tables: {reason}", file=sys.stderr)
            return 1
        options = {"rows": rows, "library": library}
        if chosen.serve:
            anyio.run(partial(serve, chosen.serve, options, chosen.token))
            return 0
        if chosen.connect:
            made = between_hosts(chosen.connect, chosen.token, options, size, folder)
        else:
            made = on_one_host(options, size, folder)
        _report.write(made, chosen.json, report)
    return 0


async def serve(url: str, options: dict[str, Any], token: str | None) -> None:
    """Serve the table until interrupted."""
    async with l5.serve(ycsb_ours.service(options), url, token=token) as server:
        print(f"serving {options['rows']} rows at {', '.join(server.urls)}", file=sys.stderr)
        await server.serve_forever()


# ---- on one host ----


def ours(options: dict[str, Any], do: str, transport: str, **more: Any) -> Spec:
    over = {"unix": "unix", "tcp": "tcp"}.get(transport)
    told = options | {"do": do} | ({} if over is None else {"transports": over, "over": over})
    return Spec(f"l5 {transport}", "ycsb_ours", options=told, what=WHAT, **more)


def foreign(options: dict[str, Any], do: str, postgres: dict[str, str]) -> Iterator[Peer]:
    told = options | {"do": do}
    yield Peer(
        Spec("SQLite in process", "ycsb_sqlite", options=told, what=WHAT, without_server=True)
    )
    for name, address in postgres.items():
        with_address = told | {"postgres": address}
        spec = Spec(name, "ycsb_postgres", options=with_address, what=WHAT, without_server=True)
        yield Peer(spec, foreign=True)


def on_one_host(options: dict[str, Any], size: Size, folder: str) -> Iterator[Row]:
    """Tables I and II, and Figure 10."""
    with ExitStack() as stack:
        postgres: dict[str, str] = {}
        port = free_port()
        try:
            filling = partial(fill, rows=options["rows"])
            unix, _ = stack.enter_context(cluster(filling, port))
            tcp = f"host=127.0.0.1 port={port} user=bench dbname=postgres"
            postgres = {"PostgreSQL, unix": unix, "PostgreSQL, tcp": tcp}
        except Unavailable as reason:
            left_out("PostgreSQL", str(reason))
        for case, do in (("table-1/ycsb-c", "lookups"), ("table-2/scan", "scan")):
            sockets = [Peer(ours(options, do, transport)) for transport in ("unix", "tcp")]
            peers = [*sockets, *foreign(options, do, postgres)]
            yield from measure(
                Case(case, ours(options, do, "shm"), peers, (METRICS[do],)), size, folder
            )
    yield from scale_out(options, size, folder)
    yield from frameworks(options, size, folder)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def scale_out(options: dict[str, Any], size: Size, folder: str) -> Iterator[Row]:
    """Figure 10: more and more clients; threads of the server, one and two."""
    for clients in size.clients:
        one = ours(options, "lookups", "shm", clients=clients)
        two = ours(options | {"workers": 2}, "lookups", "shm", clients=clients)
        peers = [
            Peer(attrs.evolve(two, name="l5 shm, two threads")),
            Peer(ours(options, "lookups", "tcp", clients=clients)),
        ]
        yield from measure(Case(f"figure-10/{clients}", one, peers, (LOOKUPS,)), size, folder)
    few = ours(options, "lookups", "shm", clients=ACTIVE)
    each = (OPEN if size is FULL else 2 * ACTIVE) // ACTIVE - 1
    many = attrs.evolve(
        ours(options | {"idle": each}, "lookups", "shm", clients=ACTIVE),
        name=f"l5 shm, {ACTIVE * (each + 1)} open",
    )
    few = attrs.evolve(few, name=f"l5 shm, {ACTIVE} open")
    yield from measure(Case("figure-10/open", many, [Peer(few)], (LOOKUPS,)), size, folder)


def frameworks(options: dict[str, Any], size: Size, folder: str) -> Iterator[Row]:
    """Figure 11: one lookup outstanding, the same table in Python behind every framework."""

    def spec(name: str, framework: str, *needs: str, **more: Any) -> Spec:
        told = {"rows": options["rows"], "framework": framework, **more}
        restless = framework == "ucx"
        return Spec(
            name, "ycsb_frameworks", options=told, what=WHAT, needs=needs, restless=restless
        )

    peers = [
        Peer(spec("gRPC on asyncio, tcp", "grpc", "grpc"), foreign=True),
        Peer(spec("pyzmq on asyncio, tcp", "zeromq", "zmq"), foreign=True),
        Peer(spec("ucxx, polling, tcp", "ucx", "ucxx", ucx="tcp,self"), foreign=True),
    ]
    found = rdma.available()
    if found:
        over = {"transports": "rdma", "device": found.addresses[0]}
        peers.append(Peer(spec("l5 rdma", "l5", **over)))
        peers.append(Peer(spec("ucxx, polling, rdma", "ucx", "ucxx", ucx="rc,self"), foreign=True))
    else:
        left_out("figure-11/ycsb-c, rdma", found.reason)
    ours = spec("l5 tcp", "l5", transports="tcp")
    yield from measure(Case("figure-11/ycsb-c", ours, peers, (LOOKUPS,)), size, folder)


# ---- between two hosts ----


def between_hosts(
    url: str, token: str | None, options: dict[str, Any], size: Size, folder: str
) -> Iterator[Row]:
    """Tables III and IV: what the two hosts upgrade to, beside the socket."""
    told = options | {"any_transport": True, "token": token, "remote": url}
    for case, do in (("table-3/ycsb-c", "lookups"), ("table-4/scan", "scan")):
        best = Spec("l5", "ycsb_remote", options=told | {"do": do}, what=WHAT, without_server=True)
        tcp = attrs.evolve(best, name="l5 tcp", options=best.options | {"transports": "tcp"})
        try:
            yield from measure(Case(case, best, [Peer(tcp)], (METRICS[do],)), size, folder)
        except WorkerFailed as failure:
            left_out(case, str(failure))
