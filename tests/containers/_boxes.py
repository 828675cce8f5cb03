"""Starting ends in boxes, and why a machine may not have such a box."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.containers import _box

ROOT = Path(__file__).parent.parent.parent


def require(*kinds: str) -> None:
    """Skip unless this process may make namespaces of these kinds."""
    for kind in kinds:
        if _box.refused(kind):
            pytest.skip(f"this process may not create {kind} namespaces")


class End:
    """A process that speaks a line of JSON at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def says(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process said nothing more; exit status {self.process.wait()}"
        return json.loads(line)

    def finish(self) -> dict[str, Any]:
        """End its standard input; return what it says then."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self.says()
        assert self.process.wait() == 0
        return last


@contextmanager
def box(spec: dict[str, Any], *command: str) -> Iterator[End]:
    """Run a Python module in a box."""
    line = [sys.executable, "-m", "tests.containers._box", json.dumps(spec)]
    with subprocess.Popen(
        [*line, sys.executable, "-m", *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield End(process)
        finally:
            process.kill()


@contextmanager
def server(spec: dict[str, Any], url: str, **options: Any) -> Iterator[End]:
    with box(spec, "tests.containers._end", "server", url, json.dumps(options)) as end:
        yield end


@contextmanager
def client(spec: dict[str, Any], url: str, **options: Any) -> Iterator[End]:
    with box(spec, "tests.containers._end", "client", url, json.dumps(options)) as end:
        yield end
