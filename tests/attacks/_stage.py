"""Processes for the attacks, forked from one that has imported everything: ``_stage.py PATH``.

A connection to PATH is a process: its first line names a function and its arguments (JSON), what
the function says and hears are lines on the same connection, and its end is the process's end.
A fork costs a few milliseconds, where a new interpreter would cost half a second.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn


class Control:
    """The line to the test."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""

    def say(self, text: object) -> None:
        self._socket.sendall(f"{text}\n".encode())

    def hear(self) -> str:
        """Wait for a line; the test's end is the end of this process."""
        while b"\n" not in self._buffer:
            data = self._socket.recv(4096)
            if not data:
                os._exit(0)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()


def perform(control: Control) -> NoReturn:
    """(In a forked child) run one function to its end."""
    status = 1
    try:
        module, name, arguments = json.loads(control.hear())
        control.say(os.getpid())
        getattr(importlib.import_module(module), name)(control, *arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main(path: str, modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    importlib.import_module("tests._patience").be_patient()  # of the l5 that has been loaded
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return  # the tests are over, or dead
            sock, _ = listener.accept()
            with sock:
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                perform(Control(sock))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
