"""How to use verbs for small messages: Figure 8 of the L5 paper, ``python -m benchmarks rdma``.

Two ends take turns in sending a message of 64 bytes. Left of the figure: how the receiver is told
(polled memory, two writes, an immediate, send and receive). Right: how a message and its flag are
delivered (two posts, one chained post, the flag as an immediate).

    host A  $ python -m benchmarks rdma --serve 192.0.2.1:7472
    host B  $ python -m benchmarks rdma --connect 192.0.2.1:7472

measures between two hosts; without either, both ends are of this process, on its first device, and
a round trip takes two turns of the loop. Beside the rates stand counts, which are exact anywhere:
posts, completions and, where the driver counts them, packets of a round trip.

Within one process there follow the costs of isolation: memory that is registered in a protection
domain of each client, and what is pinned for that, beside one domain for all of them.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import IO, Any

import attrs

from benchmarks import _rdma_isolation, _report
from benchmarks._harness import Metric, Row, Sample, compare, take_turns
from benchmarks._rdma_ends import WAYS, Counts, End, packets
from l5 import rdma
from l5.rdma import verbs

METRICS = (
    Metric("rate", "round trips", "1/s"),
    Metric("posts", "posts of a round trip", "1"),
    Metric("completions", "completions of a round trip", "1"),
    Metric("packets", "packets of a round trip", "1"),
)
CASES = {
    "figure-8/told": ("polling", ("two writes", "immediate", "send + receive")),
    "figure-8/delivery": ("two writes", ("chained", "immediate")),
}
TURN = 256
"""Round trips between two looks at the clock."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rdma", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="few messages: shows that it runs")
    parser.add_argument("--size", type=int, default=64, metavar="BYTES", help="of a message (64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", metavar="NAME", help="instead of the first one")
    parser.add_argument("--address", metavar="IP", help="choose the GID of this local address")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there as well")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--serve", metavar="IP:PORT", help="be the other end for another host")
    role.add_argument("--connect", metavar="IP:PORT", help="measure with the end served there")
    chosen = parser.parse_args(arguments)
    try:
        with opened(chosen.device) as device:
            if chosen.serve:
                with socket.create_server(endpoint(chosen.serve)) as listener:
                    serve(device, listener, chosen.address)
                return 0
            with _report.Report() as report:
                _report.write(run(device, chosen), chosen.json, report)
    except verbs.VerbsUnavailable as reason:
        print(f"rdma: {reason}", file=sys.stderr)
        return 1
    return 0


def endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


@contextmanager
def opened(name: str | None) -> Generator[verbs.Device]:
    backend = rdma.backend()
    names = backend.devices()
    if name is None and not names:
        raise verbs.VerbsUnavailable("device", "there is no RDMA device", "see `l5 info`")
    with backend.open(name or names[0]) as device:
        yield device


def run(device: verbs.Device, chosen: argparse.Namespace) -> Iterator[Row]:
    """Measure all ways of each case, in turn."""
    trips = TURN if chosen.quick else 20 * TURN
    for case, (first, others) in CASES.items():
        names = (first, *others)
        _report.begin(case, chosen.rounds * len(names))
        if chosen.connect:
            sides = [
                Remote(device, way, chosen.size, trips, chosen.connect, chosen.address)
                for way in names
            ]
        else:
            local = chosen.address or first_address(device)
            sides = [Local(device, way, chosen.size, trips, local) for way in names]
        done = take_turns(
            sides, 1 if chosen.quick else chosen.rounds, repeats=0, on_measured=_report.advance
        )
        yield from compare(case, [None] * len(others), METRICS, others, done)
    if not chosen.connect:
        yield from _rdma_isolation.rows(
            device, 1 if chosen.quick else chosen.rounds, quick=chosen.quick
        )


def first_address(device: verbs.Device) -> str:
    gids = device.gids()
    if not gids:
        raise verbs.VerbsUnavailable("gid", f"{device.name} has no GID", "give it an IP address")
    return max(gids, key=lambda gid: "." in gid.address).address


@attrs.define(eq=False)
class Local:
    """Both ends in this process (a `Side` of the harness)."""

    device: verbs.Device
    name: str
    size_bytes: int
    trips: int
    address: str

    def pids(self) -> list[int]:
        return [os.getpid()]

    def measure(self) -> Sample:
        gid = verbs.choose_gid(
            self.device.gids(), self.address, link_layer=self.device.port().link_layer
        )
        here, there = (End(self.device, gid, self.name, self.size_bytes) for _ in range(2))
        try:
            here.connect(there.about())
            there.connect(here.about())

            def trip(number: int) -> None:
                here.send(number)
                there.wait(number)
                there.send(number)
                here.wait(number)

            return timed(trip, self.trips, lambda: (here.counts, there.counts), self.device.name)
        finally:
            here.close()
            there.close()


def timed(
    trip: Callable[[int], None], trips: int, counts: Callable[[], Sequence[Counts]], device: str
) -> Sample:
    trip(0)
    before, sent, start = counts(), packets(device), time.perf_counter()
    for number in range(1, trips + 1):
        trip(number)
    seconds = time.perf_counter() - start
    used = [now.since(then) for now, then in zip(counts(), before, strict=True)]
    sample = {
        "rate": trips / seconds,
        "posts": sum(each.posts for each in used) / trips,
        "completions": sum(each.completions for each in used) / trips,
    }
    after = packets(device)
    if sent is not None and after is not None:
        sample["packets"] = (after - sent) / trips
    return sample


# ---- between two hosts: the ends tell each other about themselves in lines of JSON ----


class Line:
    """A connection that carries lines of JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self._file: IO[str] = sock.makefile("rw", encoding="utf-8", newline="\n")

    def say(self, **told: Any) -> None:
        self._file.write(json.dumps(told) + "\n")
        self._file.flush()

    def hear(self) -> dict[str, Any] | None:
        line = self._file.readline(65536)
        return json.loads(line) if line else None


@attrs.define(eq=False)
class Remote:
    """One end here, the other where `serve` runs; counts are those of this end."""

    device: verbs.Device
    name: str
    size_bytes: int
    trips: int
    server: str
    address: str | None

    def pids(self) -> list[int]:
        return [os.getpid()]

    def measure(self) -> Sample:
        with socket.create_connection(endpoint(self.server), 10.0) as sock:
            line = Line(sock)
            gid = gid_of(self.device, sock, self.address)
            end = End(self.device, gid, self.name, self.size_bytes)
            try:
                line.say(way=self.name, size=self.size_bytes, trips=self.trips, about=end.about())
                answer = line.hear()
                if answer is None or "about" not in answer:
                    raise RuntimeError(f"the other end refused: {answer}")
                end.connect(answer["about"])
                line.say(ready=True)

                def trip(number: int) -> None:
                    end.send(number)
                    end.wait(number)

                return timed(trip, self.trips, lambda: (end.counts,), self.device.name)
            finally:
                end.close()


def gid_of(device: verbs.Device, sock: socket.socket, address: str | None) -> verbs.Gid:
    local = address or str(sock.getsockname()[0])
    return verbs.choose_gid(device.gids(), local, link_layer=device.port().link_layer)


def serve(
    device: verbs.Device, listener: socket.socket, address: str | None, times: int | None = None
) -> None:
    """Be the other end, for one at a time, until interrupted or so many times."""
    host, port = listener.getsockname()[:2]
    print(f"serving at {host}:{port}, device {device.name}", file=sys.stderr, flush=True)
    for _ in repeat(None) if times is None else range(times):
        sock, _ = listener.accept()
        with sock:
            try:
                answer(device, Line(sock), gid_of(device, sock, address))
            except Exception as error:
                print(f"rdma: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def answer(device: verbs.Device, line: Line, gid: verbs.Gid) -> None:
    asked = line.hear()
    if asked is None or asked.get("way") not in WAYS:
        line.say(error=f"the way is one of {', '.join(WAYS)}")
        return
    end = End(device, gid, asked["way"], int(asked["size"]))
    try:
        end.connect(asked["about"])
        line.say(about=end.about())
        if line.hear() is None:
            return
        for number in range(int(asked["trips"]) + 1):
            end.wait(number)
            end.send(number)
        line.hear()  # the last message is out when the other end has hung up
    finally:
        end.close()
