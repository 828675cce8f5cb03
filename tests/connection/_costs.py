"""What messages cost when the peer is awake: ``python -m tests.connection._costs CASE [count]``.

The peer's part is done beforehand (its answers, or its requests, lie in the ring), so that it is
awake by construction; then a filter of the kernel kills this process at any system call but one
write, which says the result.  With ``count``, copies of the payload are counted instead, by a
library that was preloaded.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

import l5
from l5 import native
from l5._frames import Kind
from tests._patience import be_patient

MESSAGES = 60
"""Fewer than 64, after which the event loop has to run."""
SIZE = 1001
"""Short enough for memcpy, where copies are counted; longer ones have loops of their own."""
WRITE = {"x86_64": 1, "aarch64": 64}
RESULT_FD = 1


def forbid_system_calls() -> None:
    """From now on only `write` to RESULT_FD is allowed; anything else kills the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    allow, kill = 0x7FFF0000, 0x80000000
    program = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the call's number
            (0x15, 0, 3, WRITE[platform.machine()]),
            (0x20, 0, 0, 16),  # load its first argument
            (0x15, 0, 1, RESULT_FD),
            (0x06, 0, 0, allow),
            (0x06, 0, 0, kill),
        )
    )
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    if libc.prctl(set_seccomp, mode_filter, header, 0, 0) != 0:
        code = ctypes.get_errno()
        print(f"no seccomp: {errno.errorcode.get(code, code)}", flush=True)
        os._exit(77)


def now(operation: Coroutine[Any, Any, Any]) -> Any:
    """Run what needs no trip through the event loop."""
    try:
        operation.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it wanted to wait")


class Case:
    """One kind of use; `prepare` plays the peer, `run` is what is measured."""

    def __init__(self, client: l5.Connection, server: l5.Connection) -> None:
        self.client, self.server = client, server
        self.payload = bytes(range(256)) * (SIZE // 256) + b"x" * (SIZE % 256)
        self.ours: Any = client._session.ring
        self.theirs: Any = server._session.ring
        self.poller: Any = client._session.hub.poller

    def again(self) -> None:
        """Empty what the peer was sent, and pretend that the event loop has run."""
        while self.theirs.try_receive() is not None:
            pass
        self.theirs.arm(False)
        self.theirs.disarm()
        self.poller.breathe()

    def prepare(self) -> None: ...

    def run(self) -> None: ...


class Requests(Case):
    def prepare(self) -> None:
        for n in range(MESSAGES):
            sent = self.theirs.try_send(Kind.RESPONSE, 0, self.ours.next_id + n, self.payload)
            assert sent

    def run(self) -> None:
        for _ in range(MESSAGES):
            assert len(now(self.client.request(self.payload))) == SIZE


class Sends(Case):
    def run(self) -> None:
        for _ in range(MESSAGES):
            now(self.client.send(self.payload))

    def again(self) -> None:
        while self.theirs.receive(False) is not None:
            self.poller.breathe()
        while self.ours.try_receive() is not None:
            pass
        self.ours.data_allowed = self.ours.data_sent + (1 << 20)
        self.poller.breathe()


class Receives(Case):
    def prepare(self) -> None:
        self.theirs.data_allowed = self.theirs.data_sent + (1 << 20)
        for _ in range(MESSAGES):
            assert self.theirs.send(self.payload) is not False
        self.poller.breathe()

    def run(self) -> None:
        for _ in range(MESSAGES):
            assert len(now(self.client.receive())) == SIZE


class Into(Receives):
    def run(self) -> None:
        place = bytearray(SIZE)
        for _ in range(MESSAGES):
            assert now(self.client.receive_into(place)) == SIZE


class Answers(Case):
    """A server: requests lie in the ring, `Poller.serve` handles and answers them."""

    def prepare(self) -> None:
        self.poller.budget_ns = 0
        self.poller.remove(self.theirs)  # else the answers would be found there
        self.ours.server = self
        self.ours.handling_max = MESSAGES
        for n in range(MESSAGES):
            assert self.theirs.try_send(Kind.REQUEST, 0, n + 1, self.payload)

    def run(self) -> None:
        while self.poller.serve(self, lambda request: request) is not None:
            self.poller.breathe()  # counting is slow, so that the event loop is due by time


class InPlace(Requests):
    """Requests written in place; answers are small."""

    def prepare(self) -> None:
        for n in range(MESSAGES):
            sent = self.theirs.try_send(Kind.RESPONSE, 0, self.ours.next_id + n, b"ok")
            assert sent

    def run(self) -> None:
        for _ in range(MESSAGES):
            slot = self.ours.reserve(SIZE)
            with memoryview(slot) as view:
                view[0] = 1
            slot.commit(int(Kind.REQUEST), self.ours.next_id, SIZE)
            self.ours.next_id += 1
            assert self.ours.try_receive() is not None


class Leases(Receives):
    def run(self) -> None:
        for _ in range(MESSAGES):
            slot = self.ours.lease()
            with memoryview(slot) as view:
                assert view[0] == 0
            slot.close()


CASES: dict[str, Callable[[l5.Connection, l5.Connection], Case]] = {
    "request": Requests,
    "send": Sends,
    "receive": Receives,
    "into": Into,
    "answer": Answers,
    "reserve": InPlace,
    "lease": Leases,
}


async def measure(name: str, count: bool) -> None:
    sender, receiver = anyio.create_memory_object_stream[l5.Connection](1)
    with tempfile.TemporaryDirectory() as directory:
        async with (
            await l5.listen(f"l5+shm://{directory}/s") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, sender.send, group)
            client = await l5.connect(listener.urls[0])
            server = await receiver.receive()
            case = CASES[name](client, server)
            for _ in range(3):  # warm: everything has been allocated once
                case.again()
                case.prepare()
                case.run()
            case.again()
            case.prepare()
            calls = case.ours.calls
            if count:
                library = ctypes.CDLL(os.environ["LD_PRELOAD"])
                library.watch_copies(ctypes.c_size_t(SIZE))
                case.run()
                seen = library.copies_seen()
                print(f"{seen / MESSAGES} copies", flush=True)
                os._exit(0)
            forbid_system_calls()
            case.run()
            told = b"%.2f calls into C each\n" % ((case.ours.calls - calls) / MESSAGES)
            os.write(RESULT_FD, told)
            os._exit(0)  # kills the process instead: the result has been said


if __name__ == "__main__":
    be_patient()
    assert native.available, native.reason
    anyio.run(measure, sys.argv[1], sys.argv[2:] == ["count"])
