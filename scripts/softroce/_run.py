"""A run: the machines come up, the command runs, its status comes back."""

import contextlib
import platform
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ._errors import HarnessError, say
from ._kernel import prepare
from ._machine import FAILED_IN_HARNESS, Machine
from ._options import Options, parse

TIME_IS_UP = 124
INTERRUPTED = 130
TROUBLE_LINES_MAX = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as the arguments say and return its status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    try:
        if platform.machine() not in ("x86_64", "AMD64"):
            raise HarnessError(
                f"this host is {platform.machine()}: the machine runs the host's own programs, and "
                "its kernel is Debian's for amd64"
            )
        kernel, initrd = prepare(options.cache, options.kernel_deb, options.refresh)
        status = 0 if options.prepare else run(options, kernel, initrd)
    except HarnessError as error:
        say(f"error: {error}")
        return FAILED_IN_HARNESS
    except KeyboardInterrupt:
        return INTERRUPTED
    if options.times:
        say(f"{time.monotonic() - began:.1f} s in all")
    return status


def run(options: Options, kernel: Path, initrd: Path) -> int:
    """Boot the machines, run the command and return its status."""
    with tempfile.TemporaryDirectory(prefix="softroce-") as scratch, contextlib.ExitStack() as ends:
        wires = socket.socketpair() if options.nodes == 2 else (None, None)
        machines: list[Machine] = []
        try:
            for index in range(options.nodes):
                machine = Machine(index, options, Path(scratch), wires[index])
                machines.append(machine)
                ends.callback(machine.end)
                machine.start(kernel, initrd)
            _await_boot(machines, options)
            status = _await_command(machines, options)
        finally:
            ends.close()
            for machine in machines:
                for line in machine.trouble()[:TROUBLE_LINES_MAX]:
                    say(f"the kernel of machine {machine.index} says: {line}")
        if options.times:
            for machine in machines:
                took = max(0.0, machine.clock_exit_s - machine.clock_up_s)
                say(f"machine {machine.index} booted in {machine.booted_s:.1f} s, ran {took:.1f} s")
        return status


def _await_boot(machines: list[Machine], options: Options) -> None:
    limit = time.monotonic() + options.boot_timeout
    for machine in machines:
        while not machine.up.wait(0.05):
            if machine.done.is_set():
                raise _failure(machine, "it ended before it was up")
            if time.monotonic() > limit:
                raise _failure(machine, f"not up within {options.boot_timeout:g} s")


def _await_command(machines: list[Machine], options: Options) -> int:
    leaders = machines[:1] if options.peer is not None else machines
    limit = time.monotonic() + options.timeout
    cut: float | None = None
    while waiting := [machine for machine in leaders if not machine.done.is_set()]:
        waiting[0].done.wait(0.02)
        now = time.monotonic()
        if cut is None and any(machine.done.is_set() and machine.status for machine in leaders):
            cut = now + options.grace
        if now > limit:
            numbers = ", ".join(str(machine.index) for machine in waiting)
            say(f"error: stopped after {options.timeout:g} s (still running: machine {numbers})")
            return TIME_IS_UP
        if cut is not None and now > cut:
            say(f"one machine failed, the other was still running {options.grace:g} s later")
            break
    for machine in leaders:
        if machine.done.is_set() and machine.status is None:
            raise _failure(machine, "it died while the command ran")
    statuses = [machine.status for machine in leaders]
    failed = [status for status in statuses if status]
    return failed[0] if failed else FAILED_IN_HARNESS if None in statuses else 0


def _failure(machine: Machine, what: str) -> HarnessError:
    return HarnessError(
        f"machine {machine.index}: {machine.failure or what}; the end of its console:\n"
        f"{machine.last_words()}"
    )
