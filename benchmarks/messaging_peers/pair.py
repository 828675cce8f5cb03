"""A server and its clients, started together and measured when asked."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from benchmarks._harness import Sample
from benchmarks.messaging_peers.surroundings import quota

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 60.0
WARM_UP_SECONDS = 0.1
MARGIN_SECONDS = 0.1
# Never again in this process: a blocking server leaves the file of its socket behind.
PAIRS = count()
"""Between the end of the warm-up and the common start; waking many clients takes a while."""


class WorkerFailed(Exception):
    """A process of a side ended or fell silent; what it said is on standard error."""


@attrs.frozen
class Spec:
    """A side, before it is started."""

    name: str
    module: str
    backend: str = "asyncio"
    options: dict[str, Any] = attrs.field(factory=dict)
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    programs: tuple[str, ...] = ()
    """Programs that must be."""
    clients: int = 1
    one_core: bool = False
    """Both ends are kept on one and the same processor."""
    client_on_one: bool = False
    """The client may use one processor only; the server any."""
    quota: float = 0.0
    """Of processor time, for both ends together, in processors; 0: none."""
    beside: str = ""
    """What else the client's process does: a "thread" computes, or a second "connection" asks."""
    within: bool = False
    """The server is in the client's event loop."""
    what: tuple[str, ...] = ("rate",)
    """What is measured: rate, times, transfer, idle."""
    without_server: bool = False
    restless: bool = False
    """It computes even with nothing to do, so it is stopped while others have their turn.

    And it gives up a real-time priority, with which nothing else might run again."""

    @property
    def missing(self) -> list[str]:
        loops = [name for name in (self.backend,) if name != "asyncio"]
        absent = [name for name in (*self.needs, *loops) if find_spec(name) is None]
        return absent + [name for name in self.programs if shutil.which(name) is None]


class Worker:
    """One process, spoken to in lines of JSON."""

    def __init__(self, spec: Spec, role: str, address: str, group: Path | None = None) -> None:
        one_cpu = spec.one_core or (spec.client_on_one and role == "client")
        told = {
            "module": spec.module,
            "role": role,
            "backend": spec.backend,
            "options": spec.options,
            "address": address,
            "restless": spec.restless,
            "cpu": max(os.sched_getaffinity(0)) if one_cpu else None,
            "group": str(group) if group else None,
            "beside": spec.beside,
            "within": spec.within,
        }
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._name = f"the {role} of {spec.name}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.messaging_peers", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def tell(self, **command: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise WorkerFailed(f"{self._name} said nothing for {seconds:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self._name} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it: politely, and if that takes long, at once."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Pair:
    """A running side (see `benchmarks._harness.Side`)."""

    def __init__(self, spec: Spec, folder: str, seconds: float) -> None:
        self.name = spec.name
        self._spec = spec
        self._seconds = seconds
        self._number = next(PAIRS)
        self._address = os.path.join(folder, f"{self._number}.sock")
        self._workers: list[Worker] = []
        self._clients: list[Worker] = []
        self._around = ExitStack()

    def __enter__(self) -> Self:
        try:
            address, group = self._address, None
            if self._spec.quota:
                name = f"l5-bench-{os.getpid()}-{self._number}"
                group = self._around.enter_context(quota(self._spec.quota, name))
            if not (self._spec.without_server or self._spec.within):
                self._workers.append(Worker(self._spec, "server", address, group))
                address = self._workers[0].answer()["address"]
            for _ in range(self._spec.clients):
                self._clients.append(Worker(self._spec, "client", address, group))
                self._workers.append(self._clients[-1])
            for client in self._clients:
                client.answer()
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        for worker in reversed(self._workers):
            worker.close()
        self._workers.clear()
        self._clients.clear()
        self._around.close()

    def pids(self) -> list[int]:
        """Return the processes of this side, those that its servers started among them."""
        return [pid for worker in self._workers for pid in with_children(worker.pid)]

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers if self._spec.restless else ():
            worker.signal(number)

    def measure(self) -> Sample:
        self._signal(signal.SIGCONT)
        try:
            return self._measured()
        finally:
            self._signal(signal.SIGSTOP)

    def _measured(self) -> Sample:
        sample: dict[str, float] = {}
        for what in self._spec.what:
            if what == "idle":
                sample |= self._idle()
                continue
            before = self._used()[0] if what == "rate" else 0.0
            results = self._ask_all(what)
            if what == "rate":
                # All of it, warm-up included: who reads a clock in between would be in the way.
                asked = sum(result["asked"] for result in results)
                sample["cpu_s_per_million"] = (self._used()[0] - before) / asked * 1e6
            sample |= percentiles(results) if what == "times" else rates(results)
        return sample

    def ask(self, what: str, **how: Any) -> Sample:
        """Let all clients do this once, and sum up what they count."""
        return rates(self._ask_all(what, **how))

    def _ask_all(self, what: str, **how: Any) -> list[dict[str, Any]]:
        warm_up = min(WARM_UP_SECONDS, self._seconds)
        at = time.monotonic() + warm_up + MARGIN_SECONDS
        for client in self._clients:
            client.tell(do=what, warm_up=warm_up, at=at, seconds=self._seconds, **how)
        return [client.answer() for client in self._clients]

    def _idle(self) -> dict[str, float]:
        """Return the share of a processor that both ends use while nothing is to be done."""
        seconds = 4 * self._seconds
        for client in self._clients:
            client.tell(do="idle", seconds=seconds + 0.5)
        time.sleep(0.3)  # until they are idle
        before, start = self._used(), time.monotonic()
        time.sleep(seconds)
        after, elapsed = self._used(), time.monotonic() - start
        for client in self._clients:
            client.answer()
        cpu_s, switches = (now - then for now, then in zip(after, before, strict=True))
        return {"cpu_percent": 100 * cpu_s / elapsed, "wake_ups": switches / elapsed}

    def _used(self) -> tuple[float, float]:
        """Return seconds of processor time, and how often one got a processor, of all threads."""
        run_ns = turns = 0
        for pid in self.pids():
            for thread in Path(f"/proc/{pid}/task").iterdir():
                try:
                    ran, _waited, slices = (thread / "schedstat").read_text().split()
                except FileNotFoundError:  # it has just ended
                    continue
                run_ns += int(ran)
                turns += int(slices)
        return run_ns / 1e9, turns


def with_children(pid: int) -> list[int]:
    """Return a process and all that it has started and that still run."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in thread.read_text().split():
            found += with_children(int(child))
    return found


def rates(results: list[dict[str, Any]]) -> dict[str, float]:
    """Sum up what clients counted: all together, and how the slowest compares with the mean."""
    each = [result["count"] / result["seconds"] for result in results]
    sums = {"rate": sum(each), "fairness": min(each) * len(each) / sum(each)}
    beside = [result["computing"] for result in results if "computing" in result]
    return sums | ({"computing": min(beside)} if beside else {})


def percentiles(results: list[dict[str, Any]]) -> dict[str, float]:
    keys = results[0].keys() - {"computing"}
    return {key: max(result[key] for result in results) for key in keys}
