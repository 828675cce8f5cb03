"""What every process of a soak has: its slot, its board, its log, the text."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import anyio
import attrs

from ._board import Board
from ._text import Text

MIB = 1 << 20
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@attrs.frozen
class Plan:
    """What the referee tells a process; travels as JSON on the command line."""

    folder: str
    seed: int
    slots: int
    servers: list[dict[str, Any]]
    slot: int
    generation: int
    loop: str
    rss_max_bytes: int
    sabotage: str = ""

    @property
    def name(self) -> str:
        """Name of the process in reports."""
        return f"{'s' if self.slot < len(self.servers) else 'c'}{self.slot}.{self.generation}"


class Process:
    """This process; a module-level object would do, but for `fork`."""

    def __init__(self, plan: Plan) -> None:
        folder = Path(plan.folder)
        self.plan = plan
        self.board = Board(folder / "board", plan.slots, plan.slot)
        self.board.begin()
        self.told = False
        """(A client) was sent SIGTERM."""
        self.text = Text(folder / "text")
        self.rng = random.Random(f"{plan.seed} {plan.slot} {plan.generation}")
        self._log = os.open(folder / "log" / plan.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._traces = (folder / "traces" / plan.name).open("w")
        faulthandler.enable(self._traces)
        faulthandler.register(signal.SIGUSR1, self._traces)
        logging.basicConfig(level=logging.ERROR)
        warnings.simplefilter("error", ResourceWarning)

    @property
    def leaving(self) -> bool:
        """Tell whether a client is to begin nothing more: what it has begun may take long."""
        return self.told or self.board.finishing

    def log(self, **entry: Any) -> None:
        """Write a line that survives the process."""
        line = json.dumps({"by": self.plan.name, "at": time.monotonic(), **entry})
        os.write(self._log, line.encode() + b"\n")

    def wrong(self, text: str) -> None:
        """Report that a promise was not kept."""
        self.log(what="wrong", text=text)
        self.board.alarm()

    def run(self, main: Any) -> None:
        """Run the process's main function on its event loop, and report what escapes from it."""
        backend, options = LOOPS[self.plan.loop]
        try:
            anyio.run(main, backend=backend, backend_options=options)
        except BaseException as error:
            self.wrong(f"{self.plan.name} died of {error!r}")
            raise
        self.log(what="ended")


def holdings() -> dict[str, int]:
    """Return what a process holds that a connection could have left."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": maps.count("/memfd:"),
    }


def rss_bytes() -> int:
    """Return the resident memory that is this process's own (without the shared text)."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


async def check_holdings(process: Process, before: dict[str, int], when: str) -> None:
    """Report what is held in excess once it has had the time to go."""
    for _ in range(100):
        now = holdings()
        if all(now[name] <= before[name] for name in before):
            break
        await anyio.sleep(0.02)
    else:
        process.wrong(f"{process.plan.name} leaks {when}: {before} became {now}")
    held = rss_bytes()
    if held > process.plan.rss_max_bytes:
        process.wrong(f"{process.plan.name} holds {held // MIB} MiB {when}")
