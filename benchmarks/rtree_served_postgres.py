"""A PostgreSQL of our own for the benchmark: a fresh cluster in a temporary folder, no network."""

import importlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ACCOUNT = "postgres"
SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "256MB",
    "fsync": "off",
    "jit": "off",
}
ROWS_AT_ONCE = 20_000


class Unavailable(Exception):
    """There is no PostgreSQL to compare with; the message says what is missing."""


def folder_of_programs() -> Path:
    """Return where initdb is."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if not places:
        raise Unavailable("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return places[0].parent


def as_account() -> list[str]:
    """Return what goes before a command: the server refuses to run as root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise Unavailable(f"PostgreSQL refuses to run as root; no user {ACCOUNT}") from None
    return ["runuser", "-u", ACCOUNT, "--"]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{command[-1]} ended with {done.returncode}: {done.stderr[-500:]}")


@contextmanager
def cluster(rects: np.ndarray) -> Generator[tuple[str, int]]:
    """Run a server that holds the rectangles under a GiST index; give its address and its pid."""
    if find_spec("psycopg") is None:
        raise Unavailable("psycopg is not installed (pip install 'psycopg[binary]')")
    programs, prefix = folder_of_programs(), as_account()
    with tempfile.TemporaryDirectory(prefix="l5-pg-") as name:
        folder = Path(name)
        if prefix:
            shutil.chown(folder, ACCOUNT)
        data = folder / "data"
        run([*prefix, str(programs / "initdb"), "-A", "trust", "-U", "bench", "-D", str(data)])
        settings = {**SETTINGS, "unix_socket_directories": str(folder)}
        options = " ".join(f"-c {key}={value}" for key, value in settings.items())
        control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w"]
        with (folder / "log").open("w") as log:
            started = subprocess.run(
                [*control, "-o", options, "start"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        if started.returncode:
            raise Unavailable((folder / "log").read_text()[-500:])
        try:
            address = f"host={folder} user=bench dbname=postgres"
            fill(address, rects)
            yield address, int((data / "postmaster.pid").read_text().split()[0])
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], capture_output=True)


def fill(address: str, rects: np.ndarray) -> None:
    """Load the rectangles as boxes and index them."""

    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("create table boxes (id int, box box)")
        with connection.cursor().copy("copy boxes from stdin") as copy:
            for first in range(0, len(rects), ROWS_AT_ONCE):
                rows = rects[first : first + ROWS_AT_ONCE].tolist()
                copy.write(
                    "".join(
                        f"{id}\t({x1!r},{y1!r}),({x0!r},{y0!r})\n"
                        for id, (x0, y0, x1, y1) in enumerate(rows, first)
                    )
                )
        connection.execute("create index on boxes using gist (box)")
        connection.execute("vacuum analyze boxes")


def descendants(pid: int) -> list[int]:
    """Return a process and its children (PostgreSQL has one for each connection)."""
    children: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid:
            children.append(int(path.parent.name))
    return [pid, *children]
