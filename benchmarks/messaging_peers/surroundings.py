"""What is around a measured pair: a quota of processor time, other work in the client's process."""

import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from benchmarks import _quota
from benchmarks._quota import NoQuota

PERIOD_US = 100_000
ALONE_SECONDS = 0.2
SHARES = 1024
"""What a control group weighs that nobody has favoured (version 1)."""


class Computing:
    """A thread that wants nothing but the interpreter, and how fast it is."""

    def __init__(self) -> None:
        self._turns = 0
        threading.Thread(target=self._work, daemon=True).start()
        self.begin()
        time.sleep(ALONE_SECONDS)
        self._alone = self._speed()
        self.begin()

    def _speed(self) -> float:
        return (self._turns - self._before) / (time.perf_counter() - self._since)

    def _work(self) -> None:
        while True:
            self._turns += 1

    def begin(self) -> None:
        """Count from now on."""
        self._since, self._before = time.perf_counter(), self._turns

    def share(self) -> float:
        """Return its speed since `begin`, over what it was when nothing else ran."""
        return self._speed() / self._alone


computing: Computing | None = None
"""The one of this process."""


def compute() -> None:
    """Start the thread."""
    global computing
    computing = Computing()


@asynccontextmanager
async def surrounded(
    client: Callable[[str, dict[str, Any]], Any], spec: dict[str, Any]
) -> AsyncGenerator[Callable[..., Awaitable[Any]]]:
    """Make the measured connection, with what is to be beside it in its process."""
    address, options = spec["address"], spec["options"]
    async with client(address, options) as call:
        if spec["beside"] == "thread":
            compute()
        if spec["beside"] != "connection":
            yield call
            return
        async with client(address, options) as other, anyio.create_task_group() as group:
            yield _with_another(call, other, group)
            group.cancel_scope.cancel()


def _with_another(
    call: Callable[..., Awaitable[Any]], other: Callable[..., Awaitable[Any]], group: TaskGroup
) -> Callable[..., Awaitable[Any]]:
    """Return `call`; from its first use on another task asks over the other connection."""
    started = False

    async def ask(payload: bytes) -> None:
        while True:
            await other(payload)

    async def beside(payload: bytes) -> Any:
        nonlocal started
        if not started:
            started = True
            group.start_soon(ask, payload)
        return await call(payload)

    return beside


# ---- quotas --------------------------------------------------------------------------------------


@contextmanager
def quota(processors: float, name: str, root: Path = Path("/sys/fs/cgroup")) -> Generator[Path]:
    """Make a control group with so much processor time; whoever is to be in it calls `enter`."""
    base, first = _own_group(root)
    with _quota.group(base / name, processors, PERIOD_US, first=first) as group:
        if first:  # the group is favoured as the benchmark was
            nice = min(0, os.getpriority(os.PRIO_PROCESS, 0))
            try:
                (group / "cpu.shares").write_text(str(round(SHARES * 1.25**-nice)))
            except OSError as error:
                raise NoQuota(f"{group} takes no shares: {error.strerror}") from error
        yield group


def _own_group(root: Path) -> tuple[Path, bool]:
    """Return where this process is in the cpu controller's tree, and if that is version 1's."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            base = root / "cpu"
            return (base if base.exists() else root / controllers) / path.lstrip("/"), True
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return root / line[3:].lstrip("/"), False
    raise NoQuota("this process is in no control group")


def enter(group: str) -> None:
    """Put this process into a control group, before it looks how much time it has."""
    try:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"cannot enter {group}: {error}", file=sys.stderr)
        raise
