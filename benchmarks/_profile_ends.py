"""One end of what is profiled, as a program of its own: of this checkout or of another one.

    python -P _profile_ends.py server URL SECONDS [COUNTS]     until standard input ends
    python -P _profile_ends.py client URL REQUESTS [COUNTS]    REQUESTS of 0: until killed

Only what l5 has had from its beginning is used.  With COUNTS, byte codes and calls are counted by
the interpreter's own hooks and written there, as JSON.
"""

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread

import l5

PAYLOAD = bytes(range(64))
PATIENCE_S = 60.0


class Counts:
    """What the interpreter did: see `rows`."""

    def __init__(self) -> None:
        self.byte_codes = self.calls = self.c_calls = self.l5_c_calls = 0

    def start(self) -> None:
        """Count in the frames that are entered from now on."""
        sys.setprofile(self._profiled)
        sys.settrace(self._traced)

    def stop(self) -> dict[str, int]:
        """End, and return the counts."""
        sys.settrace(None)
        sys.setprofile(None)
        return {
            "byte codes": self.byte_codes,
            "calls of functions in Python, resumed coroutines": self.calls,
            "calls of functions in C": self.c_calls,
            "calls into l5's C": self.l5_c_calls,
        }

    def _traced(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.byte_codes += 1
        return self._traced

    def _profiled(self, frame: FrameType, event: str, argument: Any) -> None:
        del frame
        if event == "call":
            self.calls += 1
        elif event == "c_call":
            self.c_calls += 1
            owner = type(getattr(argument, "__self__", None)).__module__ or ""
            self.l5_c_calls += owner.startswith("l5.")


async def echo(request: bytes) -> bytes:
    """Answer with the request itself."""
    return request


async def serve(url: str) -> None:
    """Serve until standard input ends."""
    async with l5.serve(echo, url, hello_timeout=PATIENCE_S):
        print("ready", flush=True)
        await anyio.to_thread.run_sync(os.read, 0, 1)


async def ask(url: str, count: int) -> None:
    """Send so many requests, one after another; 0: without end."""
    limits: Any = {"connect_timeout": PATIENCE_S, "hello_timeout": PATIENCE_S}
    async with await l5.connect(url, **limits) as connection:
        if connection.transport != "shm":
            raise RuntimeError(f"meant to count shared memory: {connection.upgrade_report}")
        print("ready", flush=True)
        while not count:
            await connection.request(PAYLOAD)
        for _ in range(count):
            await connection.request(PAYLOAD)


def main(role: str, url: str, argument: str, counts: str = "") -> None:
    """Be one end."""
    counting = Counts()
    if counts:
        counting.start()
    if role == "server":
        anyio.run(serve, url)
    else:
        anyio.run(ask, url, int(argument))
    if counts:
        Path(counts).write_text(json.dumps(counting.stop()))


if __name__ == "__main__":
    if not Path(l5.__file__).is_relative_to(os.environ["PYTHONPATH"]):
        raise SystemExit(f"meant to profile {os.environ['PYTHONPATH']}, found {l5.__file__}")
    main(*sys.argv[1:])
