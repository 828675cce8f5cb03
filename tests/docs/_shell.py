"""Run what a page shows on its console, in a folder of its own, and compare what it prints.

Ports and folders of the page are replaced by free ones, in its programs, commands and outputs
alike. In an output ``...`` stands for anything, and in a block that is run for its figures any
number for any other. A command that ends with ``&`` goes on until the
page ends, when it gets SIGTERM; what it printed first is compared, if the page shows it.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tests.docs._blocks import Block

_PORT = re.compile(r"\b747[0-9]\b")
_FOLDERS = ("/tmp/", "/run/")
_NUMBER = re.compile(r"\d(?:[\d,]|\\\.)*")  # as re.escape writes it
_ANY_NUMBER = r"\d[\d,.]*"
_STEP_S = 0.01


class Shell:
    """The programs and servers of one page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[str, str] = {}
        self._holders: list[socket.socket] = []
        self._servers: list[subprocess.Popen[bytes]] = []

    # ---- text ------------------------------------------------------------------------------------

    def localise(self, text: str) -> str:
        """Replace the page's ports and folders by those of this run."""
        text = _PORT.sub(lambda match: self._port(match[0]), text)
        for folder in _FOLDERS:
            text = text.replace(folder, f"{self.folder}/")
        return text

    def _port(self, port: str) -> str:
        if port not in self._ports:
            # It stays bound without listening: only a server, which reuses addresses, can join it.
            holder = socket.socket()
            self._holders.append(holder)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            self._ports[port] = str(holder.getsockname()[1])
        return self._ports[port]

    def write(self, block: Block) -> None:
        """Write a block that is a file."""
        name = block.file_name
        assert name is not None
        (self.folder / name).write_text(self.localise(block.text), encoding="utf-8")

    # ---- commands --------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Run the commands of a console block."""
        for command, expected in block.commands:
            wanted = self.localise(expected)
            if command.endswith("&"):
                self._start(block, command.rstrip("& "), wanted)
                continue
            done = subprocess.run(
                self._words(command),
                cwd=self.folder,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            printed = done.stdout.decode()
            assert done.returncode == 0, f"{block}: {command}\n{printed}"
            if wanted:
                same = matches(wanted, printed, figures=block.argument == "figures")
                assert same, _differs(block, command, wanted, printed)

    def _start(self, block: Block, command: str, wanted: str) -> None:
        log = self.folder / f"server-{len(self._servers)}.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                self._words(command),
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._servers.append(server)
        while not (printed := log.read_text()) or (wanted and not matches(wanted, printed)):
            # No limit of its own: the test's timeout ends a server that never says it.
            assert server.poll() is None, _differs(block, command, wanted, printed)
            time.sleep(_STEP_S)

    def _words(self, command: str) -> list[str]:
        words = shlex.split(self.localise(command), comments=True)
        if words[0] == "python":
            words[0] = sys.executable
        return words

    def _environment(self) -> dict[str, str]:
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"
        # As on a terminal: a line at a time, 80 columns, no colours.
        return os.environ | {
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }

    def close(self) -> None:
        """Stop the servers; one that does not obey SIGTERM fails the test by its timeout."""
        for server in self._servers:
            server.send_signal(signal.SIGTERM)
        for server in self._servers:
            server.wait()
        for holder in self._holders:
            holder.close()


def matches(wanted: str, printed: str, *, figures: bool = False) -> bool:
    """Compare line by line, without the spaces at the ends of lines."""
    patterns: list[str] = []
    for line in wanted.strip().splitlines():
        if line.strip() == "...":
            patterns.append(r"[\s\S]*")
            continue
        pattern = ".*".join(map(re.escape, line.rstrip().split("...")))
        patterns.append(_NUMBER.sub(lambda _: _ANY_NUMBER, pattern) if figures else pattern)
    text = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch("\n".join(patterns), text) is not None


def _differs(block: Block, command: str, wanted: str, printed: str) -> str:
    return f"{block}: {command}\n--- the page shows\n{wanted}\n--- it printed\n{printed}"
