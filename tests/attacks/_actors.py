"""The test's end of the processes of `_stage.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc

ROOT = Path(__file__).parent.parent.parent


class Actor:
    """A process that attacks, or is attacked."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.pid = 0
        self._stream = stream
        self._text = ""

    async def says(self, word: str = "") -> str:
        """Wait for a line that begins so and return its rest; `EndOfStream` when it is dead."""
        while True:
            while "\n" not in self._text:
                self._text += (await self._stream.receive()).decode()
            line, self._text = self._text.split("\n", 1)
            if line.startswith(word):
                return line[len(word) :].strip()

    async def tell(self, text: str) -> None:
        await self._stream.send(f"{text}\n".encode())

    async def ends(self) -> list[str]:
        """Wait for the process's end; return what it said until then."""
        lines: list[str] = []
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                lines.append(await self.says())
        return lines

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def rss_bytes(self) -> int:
        """Memory of its own that it holds now."""
        if "L5_SANITIZED" in os.environ:
            return 0  # a sanitizer keeps what was freed
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not say")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def shared_maps(self) -> int:
        return Path(f"/proc/{self.pid}/maps").read_text().count("/memfd:")


class Stage:
    """Where processes come from."""

    def __init__(self, path: str) -> None:
        self._path = path

    @asynccontextmanager
    async def actor(self, function: str, *arguments: object) -> AsyncIterator[Actor]:
        """Run ``module:function(control, *arguments)`` in a process; it is killed at the end."""
        module, _, name = function.partition(":")
        async with await anyio.connect_unix(self._path) as stream:
            actor = Actor(stream)
            await actor.tell(json.dumps([f"tests.attacks.{module}", name, arguments]))
            actor.pid = int(await actor.says())
            try:
                yield actor
            finally:
                with anyio.CancelScope(shield=True):
                    with suppress(ProcessLookupError):
                        actor.kill()
                    await actor.ends()


@contextmanager
def stage(folder: Path, *modules: str, main: str = "tests.attacks._stage") -> Generator[Stage]:
    """Start the process that the others are forked from."""
    path = str(folder / "stage")
    if len(path) > 100:
        path = os.path.relpath(path, ROOT)
    command = [sys.executable, "-m", main, path, *modules]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield Stage(path)
        process.stdin.close()
        process.wait()
