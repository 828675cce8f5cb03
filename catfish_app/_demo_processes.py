"""Child processes of the demo that say what they do in lines of JSON."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

LINE_BYTES_MAX = 1 << 20
PATIENCE_S = 30.0
GRACE_S = 10.0


class ChildError(Exception):
    """A child process did not do its part; the message holds what it said."""


class Child:
    """A Python process that writes JSON, a line at a time."""

    def __init__(self, name: str, process: anyio.abc.Process, errors: Path) -> None:
        assert process.stdout is not None
        self.name = name
        self._process = process
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._errors = errors

    async def read(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next line; `ChildError` when there is none in time."""
        try:
            with anyio.fail_after(patience_s):
                line = await self._lines.receive_until(b"\n", LINE_BYTES_MAX)
        except TimeoutError:
            raise self._error(f"said nothing for {patience_s:g} s") from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            raise self._error(f"ended with status {await self._process.wait()}") from None
        try:
            return json.loads(line)
        except ValueError:
            raise self._error(f"said {line[:200]!r}") from None

    async def go(self) -> None:
        """Send it the line that it waits for."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(b"go\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._error("ended before it was told to begin") from None

    async def stop(self) -> int:
        """Ask it to end, insist after a while, and return its status."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(GRACE_S):
                return await self._process.wait()
            self._process.kill()
        return await self._process.wait()

    def _error(self, what: str) -> ChildError:
        said = self._errors.read_text(errors="replace").strip()
        return ChildError(f"the {self.name} {what}" + (f":\n{said}" if said else ""))


@asynccontextmanager
async def child(name: str, folder: Path, *arguments: str) -> AsyncGenerator[Child]:
    """Run ``python ARGUMENTS`` as long as the block lasts."""
    errors = folder / f"{name.replace(' ', '-')}.errors"
    with errors.open("wb") as stderr:
        process = await anyio.open_process(
            [sys.executable, *arguments], stdin=PIPE, stdout=PIPE, stderr=stderr
        )
    running = Child(name, process, errors)
    try:
        yield running
    finally:
        with anyio.CancelScope(shield=True):
            await running.stop()
            await process.aclose()
