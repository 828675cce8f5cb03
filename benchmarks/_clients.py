"""Client processes of a benchmark: wishes go in and findings come out, a line of JSON each."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

Process = subprocess.Popen[str]


def read(process: Process, name: str) -> str:
    """Wait for a line; who ends instead is named."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a client of {name} ended with status {process.wait()}")
    return line


def ask(processes: Sequence[Process], wish: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Let all of them do one thing at once; return what each found."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(wish) + "\n")
        process.stdin.flush()
    return [json.loads(read(process, name)) for process in processes]
