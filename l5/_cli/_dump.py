"""``l5 dump``: the frames of a running process, or of a command, as pcapng for Wireshark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated

import typer

import l5
from l5._cli._run import run
from l5._cli._top import find
from l5._errors import L5Error
from l5._status import Watcher

DISSECTOR = Path(l5.__file__).with_name("l5.lua")


def dump(
    target: Annotated[
        list[str] | None,
        typer.Argument(help="A process id, a server's URL on this host, or a command after --."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where to write; - is the standard output.")
    ] = "l5.pcapng",
    snap: Annotated[int, typer.Option(min=0, help="Bytes of each payload to keep.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after so long; 0: never.")] = 0.0,
    token: Annotated[
        str | None, typer.Option(envvar="L5_TOKEN", help="(URL) better given in L5_TOKEN.")
    ] = None,
    dissector: Annotated[
        bool, typer.Option("--dissector", help="Print where Wireshark's dissector is.")
    ] = False,
) -> None:
    """Record frames until the process ends, or until interrupted.

    A process must run with L5_STATUS=1; a command is started with it.
    """
    if dissector:
        print(DISSECTOR)
        return
    if not target:
        raise typer.BadParameter("give a process id, a URL or, after --, a command")
    if output == "-" and sys.stdout.isatty():
        raise typer.BadParameter("pcapng on a terminal helps nobody: give -o FILE")

    async def work() -> None:
        if len(target) > 1 or not (target[0].isdigit() or "://" in target[0]):
            with _open(output) as stream:
                _record_command(target, stream, snap, seconds)
            return
        # Found first: where there is nothing to record, an older recording stays as it is.
        with closing(await _watcher(target[0], token, snap)) as watcher, _open(output) as stream:
            _record(watcher, stream, seconds)

    run(work)


def _open(output: str) -> IO[bytes]:
    if output == "-":
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    return open(output, "wb", buffering=0)


async def _watcher(target: str, token: str | None, snap: int) -> Watcher:
    return Watcher(await find(target, token), f"tap {snap}")


def _record(watcher: Watcher, stream: IO[bytes], seconds: float) -> None:
    ends = time.monotonic() + seconds if seconds else None
    watcher.set_timeout(0.1)
    try:
        while ends is None or time.monotonic() < ends:
            try:
                data = watcher.read_bytes()
            except TimeoutError:
                continue
            if not data:
                return
            stream.write(data)
        watcher.set_timeout(5.0)
        watcher.stop()
        while data := watcher.read_bytes():  # what waited, and the count of what was dropped
            stream.write(data)
    except KeyboardInterrupt:
        pass


def _record_command(command: list[str], stream: IO[bytes], snap: int, seconds: float) -> None:
    child = subprocess.Popen(command, env={**os.environ, "L5_STATUS": "1"})
    try:
        while child.poll() is None:
            try:
                watcher = Watcher(child.pid, f"tap {snap}")
                break
            except OSError:
                time.sleep(0.02)  # it has no connection yet
        else:
            raise L5Error(f"{command[0]} ended (status {child.returncode}) without a connection")
        with closing(watcher):
            _record(watcher, stream, seconds)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM if seconds else signal.SIGINT)
        child.wait()
