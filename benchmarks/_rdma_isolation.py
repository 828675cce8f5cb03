"""What it costs that no client's key opens another's memory: a protection domain for each client.

Two sides hold each other's answer: one domain for all clients, in which a region is registered
once and everybody's key opens everything; and a domain for each, in which it is registered as
often as there are clients.
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs

from benchmarks import _report
from benchmarks._harness import Metric, Row, Sample, compare, take_turns
from l5.rdma import verbs

METRICS = (
    Metric("register_ms", "to register", "ms"),
    Metric("deregister_ms", "to deregister", "ms"),
    Metric("registrations", "registrations", "1"),
    Metric("pinned_kib", "pinned", "KiB"),
)
SHARED, OWN = "one domain for all", "a domain for each client"
SIZES_KIB = (4, 1024, 65536)
CLIENTS = 16
ROW, STAGING, SCRATCH = 4096, 65536, 4096
"""What l5 registers for a client at the server, beside the one byte of its flag."""


def rows(device: verbs.Device, rounds: int, *, quick: bool) -> Iterator[Row]:
    """Measure a region of each size, and then the memory of clients' mailboxes."""
    clients = 4 if quick else CLIENTS
    cases = [(f"a region of {kib} KiB", [kib << 10]) for kib in SIZES_KIB[: 1 if quick else None]]
    cases.append(("mailboxes", [ROW, 1, STAGING, SCRATCH]))
    for what, sizes in cases:
        case = f"isolation/{what}, {clients} clients"
        _report.begin(case, rounds * 2)
        each = what == "mailboxes"
        sides = [Registered(device, name, sizes, clients, each) for name in (SHARED, OWN)]
        done = take_turns(sides, rounds, repeats=0, on_measured=_report.advance)
        yield from compare(case, [None], METRICS, [OWN], done)


@attrs.define(eq=False)
class Registered:
    """One of the two sides (a `Side` of the harness)."""

    device: verbs.Device
    name: str
    sizes: list[int]
    clients: int
    for_each: bool
    """The memory is each client's own: one domain for all does not spare its registration, but
    joins it into one of all of it."""

    def pids(self) -> list[int]:
        return [os.getpid()]

    def measure(self) -> Sample:
        own = self.name == OWN
        copies = self.clients if self.for_each else 1
        with ExitStack() as stack:
            areas = [self._area(stack, size * (1 if own else copies)) for size in self.sizes]
            domains = [self.device.protection_domain() for _ in range(self.clients if own else 1)]
            before, start = pinned_kib(), time.perf_counter()
            regions = [
                domain.register(address, size, verbs.LOCAL_WRITE | verbs.REMOTE_READ)
                for domain in domains
                for address, size in areas
            ]
            registered = time.perf_counter()
            pinned = pinned_kib()
            between = time.perf_counter()
            for region in regions:
                region.close()
            ended = time.perf_counter()
            for domain in domains:
                domain.close()
        sample = {
            "register_ms": (registered - start) * 1e3,
            "deregister_ms": (ended - between) * 1e3,
            "registrations": float(len(regions)),
        }
        if before is not None and pinned is not None and pinned > before:
            sample["pinned_kib"] = float(pinned - before)
        return sample

    def _area(self, stack: ExitStack, size: int) -> tuple[int, int]:
        """Return the address and size of memory that is there already."""
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        stack.callback(memory.close)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        return verbs.address_of(memory), size


def pinned_kib() -> int | None:
    """Return what drivers have pinned of this process, where the kernel says so."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("VmPin:")]
    return int(found[0]) if found else None
