"""What is around a measured pair: a quota of processor time, other work in the client's process."""

import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

PERIOD_US = 100_000
SHARES = 1024
"""What a control group weighs that nobody has favoured (version 1)."""


class NoQuota(Exception):
    """This machine lets us set no quota, for the reason that it tells."""


def compute() -> None:
    """Start a thread that wants nothing but the interpreter."""

    def work() -> None:
        while True:
            pass

    threading.Thread(target=work, daemon=True).start()


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
    base = _own_group(root)
    group = base / name
    limit = round(processors * PERIOD_US)
    try:
        group.mkdir()
    except OSError as error:
        raise NoQuota(f"cgroup {base} is not writable: {error.strerror}") from error
    try:
        try:
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(limit))
                # The group is favoured as the benchmark was.
                nice = min(0, os.getpriority(os.PRIO_PROCESS, 0))
                (group / "cpu.shares").write_text(str(round(SHARES * 1.25**-nice)))
            else:
                (group / "cpu.max").write_text(f"{limit} {PERIOD_US}")
        except OSError as error:
            raise NoQuota(f"{group} takes no quota: {error.strerror}") from error
        yield group
    finally:
        group.rmdir()


def _own_group(root: Path) -> Path:
    """Return where this process is in the hierarchy that shares out the processors."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            base = root / "cpu"
            return (base if base.exists() else root / controllers) / path.lstrip("/")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return root / line[3:].lstrip("/")
    raise NoQuota("this process is in no control group")


def enter(group: str) -> None:
    """Put this process into a control group, before it looks how much time it has."""
    try:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"cannot enter {group}: {error}", file=sys.stderr)
        raise
