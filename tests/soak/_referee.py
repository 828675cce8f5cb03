"""The referee: starts the processes, kills, stops and replaces them, and watches who waits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from ._board import COUNTED, Board
from ._process import MIB, Plan
from ._text import Text
from ._verdict import SAID, Disturbances, judge, read_logs

ROOT = Path(__file__).parent.parent.parent
NATIVE = ROOT / "l5" / "native"
# What each server is: its kind and its loop.  Half of them take plain messages.
SERVERS = (
    *(("talk", "asyncio"), ("async", "uvloop"), ("talk", "trio"), ("native", "trio")),
    *(("talk", "uvloop"), ("plain", "asyncio"), ("context", "trio"), ("native", "asyncio")),
)
LOOPS = ("asyncio", "uvloop", "trio")
START_S = 240.0
# One that takes longer to start tells how slow the machine is: waits may be as much longer.
USUAL_START_S = 4.0
ACTION_EVERY_S = 0.7
ACTIONS = {"SIGKILL": 45, "SIGTERM": 25, "SIGSTOP": 30}
"""How often each is chosen, of a hundred times."""
RSS_MAX_BYTES = 400 * MIB


@attrs.frozen
class Enough:
    """What a soak must have come to, and each action: on a slow machine it goes on until then."""

    messages: int = 0
    cancelled: int = 0
    ways: frozenset[str] = frozenset()
    """What was said, over which transport: "requests, shm"."""
    patience_s: float = 120.0

    def reached(self, counts: Counter[str], entries: list[dict[str, Any]]) -> bool:
        """Tell whether a soak that counted and wrote down this has come to all of it."""
        ways = {
            f"{SAID[entry['what']]}, {entry['transport']}"
            for entry in entries
            if entry["what"] in SAID
        }
        few = counts["messages"] <= self.messages or counts["cancelled"] <= self.cancelled
        return not few and self.ways <= ways


@attrs.frozen
class Settings:
    """What a soak is asked to do."""

    seconds: float
    seed: int
    processes: int = 32
    hang_s: float = 40.0
    sabotage: str = ""
    disturb: bool = True
    enough: Enough = attrs.field(factory=Enough)


@attrs.frozen
class Result:
    """What a soak found."""

    summary: dict[str, Any]
    wrong: list[str]


@attrs.define(eq=False)
class Slot:
    """A place for a process, and the one that is there now."""

    number: int
    generation: int = 0
    process: subprocess.Popen[bytes] | None = None
    name: str = ""
    told_at: float = 0.0
    resume_at: float = 0.0
    started_at: float = 0.0
    start_s: float = 0.0
    """How long its process took to start; zero until it has."""
    calm_from: float = 0.0
    """Waits that began earlier may have waited for a process that was stopped."""


class Referee:
    """One soak."""

    def __init__(self, settings: Settings, folder: Path, report: Callable[[str], None]) -> None:
        self.settings = settings
        self._folder = folder
        self._report = report
        self._rng = random.Random(settings.seed)
        for name in ("log", "traces", "stderr", "urls"):
            (folder / name).mkdir()
        Text.write(folder / "text", settings.seed)
        self._board = Board(folder / "board", settings.processes)
        self._holders: list[socket.socket] = []
        count = max(2, min(len(SERVERS), settings.processes // 4))
        library = self._build_handler()
        self._servers = [self._place(index, library) for index in range(count)]
        self._slots = [Slot(number) for number in range(settings.processes)]
        self._done = Disturbances(count)
        self._wrong: list[str] = []
        self._counts: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()
        self._looked_at = 0.0

    # ---- places ----------------------------------------------------------------------------------

    def _build_handler(self) -> str:
        target = self._folder / "handler.so"
        compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
        source = Path(__file__).parent / "handler.c"
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command = [compiler, *flags, f"-I{NATIVE}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return str(target)

    def _place(self, index: int, library: str) -> dict[str, Any]:
        kind, loop = SERVERS[index]
        port = self._free_port()
        urls = [f"l5+unix://{self._folder}/urls/{index}", f"l5://127.0.0.1:{port}"]
        return {"kind": kind, "loop": loop, "urls": urls, "library": library}

    def _free_port(self) -> int:
        """Return a port that stays ours, as a socket is bound to it: only a server can share it."""
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self._holders.append(holder)
        return holder.getsockname()[1]

    def _start(self, slot: Slot) -> None:
        is_server = slot.number < len(self._servers)
        plan = Plan(
            folder=str(self._folder),
            seed=self.settings.seed,
            slots=self.settings.processes,
            servers=self._servers,
            slot=slot.number,
            generation=slot.generation,
            loop=self._servers[slot.number]["loop"] if is_server else LOOPS[slot.number % 3],
            rss_max_bytes=RSS_MAX_BYTES,
            sabotage=self.settings.sabotage,
        )
        module = "tests.soak._server" if is_server else "tests.soak._client"
        slot.name, slot.told_at, slot.calm_from = plan.name, 0.0, time.monotonic()
        slot.started_at, slot.start_s = slot.calm_from, 0.0
        with (self._folder / "stderr" / plan.name).open("wb") as stderr:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(attrs.asdict(plan))],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )

    # ---- the course of a soak --------------------------------------------------------------------

    def run(self) -> Result:
        """Run the soak; whatever happens, no process is left."""
        began = time.monotonic()
        try:
            self._start_all()
            started = time.monotonic()
            self._disturb_until(started + self.settings.seconds)
            soaked = time.monotonic()
            self._finish()
        finally:
            over = time.monotonic()
            self._kill_all()
        written = read_logs(self._folder / "log")
        wrong, ends = judge([entry for entry in written if entry["at"] < over], self._done)
        wrong = [*self._wrong, *wrong]
        summary = {
            "seed": self.settings.seed,
            "processes": self.settings.processes,
            "seconds": round(soaked - started, 1),
            "start_seconds": round(started - began, 1),
            "finish_seconds": round(time.monotonic() - soaked, 1),
            **{name: self._counts[name] for name in COUNTED},
            "actions": dict(sorted(self._actions.items())),
            "ends": dict(sorted(ends.items())),
            "wrong": wrong,
        }
        return Result(summary, wrong)

    def _start_all(self) -> None:
        count = len(self._servers)
        for slot in self._slots[:count]:
            self._start(slot)
        self._wait_for("the servers to come up", lambda: self._log_has("up", count))
        for slot in self._slots[count:]:
            self._start(slot)
        total = len(self._slots)
        self._wait_for("the clients to come up", lambda: self._log_has("up", total))
        self._board.go()

    def _log_has(self, what: str, count: int) -> bool:
        found = {entry["by"] for entry in read_logs(self._folder / "log") if entry["what"] == what}
        return len(found) >= count

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + START_S
        while not condition():
            self._look_after_processes()
            if self._wrong:
                return
            if time.monotonic() > until:
                self._wrong.append(f"gave up waiting for {what}")
                self._who_waits(0.0)
                return
            time.sleep(0.1)

    def _disturb_until(self, end: float) -> None:
        next_action = time.monotonic()
        while not self._over(now := time.monotonic(), end):
            due = end - now > 5.0 or self._untried()
            if self.settings.disturb and now >= next_action and due:
                # Not so often that processes are killed as they start, and nobody gets to talk.
                pause_s = ACTION_EVERY_S * self._slowness(now)
                next_action = now + pause_s * self._rng.uniform(0.5, 1.5)
                self._disturb(self._rng.choice(self._slots), now)
            self._look_after_processes()
            self._watch(now)
            self._report(self._line(end - now))
            time.sleep(0.1)

    def _over(self, now: float, end: float) -> bool:
        if self._wrong or self._board.alarmed:
            return True
        enough = self.settings.enough
        if now < max(end, self._looked_at + 1.0):
            return False
        self._looked_at = now
        if now > end + enough.patience_s:
            return True
        if self.settings.disturb and self._untried():
            return False
        return enough.reached(self._all_counts(), read_logs(self._folder / "log"))

    def _untried(self) -> list[str]:
        return [name for name in ACTIONS if not self._actions[name]]

    def _disturb(self, slot: Slot, now: float) -> None:
        if slot.process is None or slot.told_at or slot.resume_at:
            return
        action = self._rng.choices([*ACTIONS], [*ACTIONS.values()])[0]
        action = next(iter(self._untried()), action)
        self._actions[action] += 1
        if action != "SIGSTOP":
            self._done.end(slot.name, slot.number, now)
            slot.told_at = now
            slot.process.send_signal(signal.Signals[action])
        else:
            slot.resume_at = now + self._rng.uniform(0.1, 3.0)
            self._done.stop(slot.number, now, slot.resume_at)
            slot.process.send_signal(signal.SIGSTOP)

    def _look_after_processes(self) -> None:
        """Let stopped processes go on, and replace those that ended."""
        now = time.monotonic()
        for slot in self._slots:
            if slot.process is None:
                continue
            if slot.resume_at and now >= slot.resume_at:
                slot.resume_at, slot.calm_from = 0.0, now
                slot.process.send_signal(signal.SIGCONT)
            if not slot.start_s and self._board.has_begun(slot.number):
                slot.start_s = now - slot.started_at
            status = slot.process.poll()
            if status is None:
                continue
            self._note_end(slot, status)
            slot.process = None
            if not self._board.finishing and not self._wrong:
                slot.generation += 1
                self._start(slot)

    def _note_end(self, slot: Slot, status: int) -> None:
        self._counts.update(self._board.counts(slot.number))
        self._board.clear(slot.number)  # or they would count again until the next one has begun
        expected = status == 0 or (slot.told_at and status in (-signal.SIGKILL, -signal.SIGTERM))
        if not expected or not (slot.told_at or self._board.finishing):
            text = self._written("stderr", slot) + self._written("traces", slot)
            self._wrong.append(f"{slot.name} ended with {status}:\n{text[-3000:]}")

    # ---- watching --------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        """Report a hang: somebody has waited too long although nobody was stopped meanwhile."""
        hang_s = self._hang_s(now)
        for slot in self._slots:
            if slot.process is None or slot.resume_at:
                continue
            if slot.told_at and now - slot.told_at > hang_s:
                self._wrong.append(f"{slot.name} was told to end, and does not in {hang_s:.0f} s")
            waits = self._board.waits(slot.number)
            if waits and now - max(waits[0][0], slot.calm_from) > hang_s:
                self._wrong.append(f"{slot.name} hangs for {hang_s:.0f} s")
        if self._wrong:
            self._who_waits(self.settings.hang_s / 2)

    def _slowness(self, now: float) -> float:
        """Return how much longer than usual processes need just to start: one, or more."""
        starts = [
            slot.start_s or now - slot.started_at
            for slot in self._slots
            if slot.process is not None
        ]
        return max(1.0, max(starts, default=0.0) / USUAL_START_S)

    def _hang_s(self, now: float) -> float:
        return self.settings.hang_s * self._slowness(now)

    def _who_waits(self, longer_than_s: float) -> None:
        """Add to the verdict who waits for whom, and where in the code."""
        now = time.monotonic()
        lines: list[str] = []
        for slot in self._slots:
            waits = self._board.waits(slot.number)
            late = [(now - since, text) for since, text in waits if now - since > longer_than_s]
            if slot.process is None or not late:
                continue
            slot.process.send_signal(signal.SIGUSR1)
            pid = slot.process.pid
            lines += [f"  {slot.name} (pid {pid}) {age:.1f} s: {text}" for age, text in late]
        time.sleep(0.5)
        self._wrong.append("who waits for whom:\n" + "\n".join(lines))
        for slot in self._slots:
            if text := self._written("traces", slot):
                self._wrong.append(f"{slot.name}:\n{text[-1500:]}")

    def _written(self, what: str, slot: Slot) -> str:
        """Return what a process wrote: nothing where it has not come so far."""
        path = self._folder / what / slot.name
        return path.read_text(errors="replace") if slot.name and path.exists() else ""

    def _all_counts(self) -> Counter[str]:
        counts = Counter(self._counts)
        for slot in self._slots:
            counts.update(self._board.counts(slot.number))
        return counts

    def _line(self, left_s: float) -> str:
        """Return the state of the soak, in one line."""
        counts = self._all_counts()
        actions = " ".join(f"{name} {count}" for name, count in sorted(self._actions.items()))
        return (
            f"{left_s:5.0f} s left  {counts['messages']:,} messages  "
            f"{counts['bytes'] / 1e9:.2f} GB  {counts['connections']:,} connections  "
            f"{counts['cancelled']:,} cancelled  {actions}"
        )

    # ---- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let everybody come to an end: first the clients, then the servers."""
        for slot in self._slots:
            slot.resume_at = min(slot.resume_at, time.monotonic())
        count = len(self._servers)
        for flag, slots in ((1, self._slots[count:]), (2, self._slots[:count])):
            self._board.tell(flag)
            began = time.monotonic()
            while any(slot.process is not None for slot in slots):
                self._look_after_processes()
                if self._wrong:
                    return
                names = [slot.name for slot in slots if slot.process is not None]
                if names and (now := time.monotonic()) > began + self._hang_s(now):
                    self._wrong.append(f"do not come to an end: {', '.join(names)}")
                    self._who_waits(0.0)
                    return
                time.sleep(0.05)

    def _kill_all(self) -> None:
        for slot in reversed(self._slots):  # clients first: they would tell of servers that went
            if slot.process is not None:
                slot.process.kill()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.wait()
                self._counts.update(self._board.counts(slot.number))
                slot.process = None
        for holder in self._holders:
            holder.close()
