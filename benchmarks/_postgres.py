"""A PostgreSQL of our own for the benchmarks: a fresh cluster in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ACCOUNT = "postgres"
SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "256MB",
    "fsync": "off",
    "jit": "off",
}


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
def cluster(fill: Callable[[str], None], tcp_port: int | None = None) -> Generator[tuple[str, int]]:
    """Run a server that `fill` has filled; give its address (a Unix socket's) and its pid.

    It listens on a TCP port of loopback only if that is given.
    """
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
        if tcp_port is not None:
            settings |= {"listen_addresses": "127.0.0.1", "port": str(tcp_port)}
        options = " ".join(f"-c {key}={value}" for key, value in settings.items())
        control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w"]
        with (folder / "log").open("w") as log:
            started = subprocess.run(
                [*control, "-o", options, "start"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        if started.returncode:
            raise Unavailable((folder / "log").read_text()[-500:])
        try:
            address = f"host={folder} port={tcp_port or 5432} user=bench dbname=postgres"
            fill(address)
            yield address, int((data / "postmaster.pid").read_text().split()[0])
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], capture_output=True)


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
