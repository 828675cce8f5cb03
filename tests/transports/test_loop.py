"""`l5._loop`: descriptors that stay registered, on each event loop."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
import trio

from l5 import _loop
from l5._loop import Descriptor, checkpoint, current_loop_token

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    os.close(ends[0])
    os.close(ends[1])


async def test_returns_at_once_for_what_is_there(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    descriptor = Descriptor(pipe[0])
    with anyio.fail_after(60):
        await descriptor.wait_readable()
    descriptor.close()


async def test_every_event_wakes_a_waiter(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    turns = anyio.Event()

    async def write() -> None:
        for _ in range(200):
            nonlocal turns
            os.write(pipe[1], b"x")
            await turns.wait()
            turns = anyio.Event()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for _ in range(200):
                while True:
                    try:
                        assert os.read(pipe[0], 10) == b"x"
                        break
                    except BlockingIOError:
                        await descriptor.wait_readable()
                turns.set()
    descriptor.close()


@pytest.mark.parametrize("pause_loops", [0, 1, 2, 3])
async def test_an_event_is_never_lost_between_waits(
    pipe: tuple[int, int], pause_loops: int
) -> None:
    # The event that asyncio ignores after a wake-up must come again if it was meant.
    descriptor = Descriptor(pipe[0])
    with anyio.fail_after(60):
        for _ in range(20):
            os.write(pipe[1], b"x")
            await descriptor.wait_readable()
            os.read(pipe[0], 10)
            for _ in range(pause_loops):
                await checkpoint()
            os.write(pipe[1], b"y")
            await descriptor.wait_readable()
            assert os.read(pipe[0], 10) == b"y"
            await checkpoint()
    descriptor.close()


async def test_waits_while_nothing_is_there(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    with anyio.move_on_after(0.05) as scope:
        await descriptor.wait_readable()
    assert scope.cancelled_caught
    descriptor.close()


async def test_waits_again_after_cancellation(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await descriptor.wait_readable()
        assert scope.cancelled_caught
    os.write(pipe[1], b"x")
    with anyio.fail_after(60):
        await descriptor.wait_readable()
    descriptor.close()


async def test_unread_data_does_not_keep_the_loop_busy(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    calls: list[str] = []
    original = getattr(descriptor, "_on_readable", None)
    if original is not None:  # trio has no such callback: who does not wait is not registered

        def counted() -> None:
            calls.append("readable")
            original()

        descriptor._on_readable = counted
    os.write(pipe[1], b"x")
    await descriptor.wait_readable()
    for _ in range(50):
        await checkpoint()
    assert len(calls) <= 3
    with anyio.fail_after(60):
        await descriptor.wait_readable()
    descriptor.close()


async def test_a_second_waiter_is_refused(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    async with anyio.create_task_group() as group:
        group.start_soon(descriptor.wait_readable)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await descriptor.wait_readable()
        os.write(pipe[1], b"x")
    descriptor.close()


async def test_close_wakes_the_waiter(pipe: tuple[int, int]) -> None:
    descriptor = Descriptor(pipe[0])
    outcome: list[str] = []

    async def wait() -> None:
        try:
            await descriptor.wait_readable()
        except anyio.ClosedResourceError:
            outcome.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        descriptor.close()
        descriptor.close()
    assert outcome == ["closed"]
    with pytest.raises(anyio.ClosedResourceError):
        await descriptor.wait_readable()


async def test_the_token_is_one_per_loop() -> None:
    token = current_loop_token()
    assert {token: 1}[current_loop_token()] == 1

    async def ask() -> object:
        return current_loop_token()

    def other_loop() -> object:
        return anyio.run(ask, backend="asyncio")

    assert await ask() is token
    assert await anyio.to_thread.run_sync(other_loop) is not token


async def test_checkpoint_lets_others_run_and_is_cancelled() -> None:
    ran: list[int] = []

    async def other() -> None:
        ran.append(1)

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        while not ran:
            await checkpoint()
    with anyio.CancelScope() as scope:
        scope.cancel()
        for _ in range(10):
            await checkpoint()
    assert scope.cancelled_caught
    with anyio.CancelScope() as outer, anyio.CancelScope(shield=True):
        outer.cancel()
        await checkpoint()
        ran.append(2)
    assert ran == [1, 2]


def test_both_loops_in_one_thread() -> None:
    # trio as a guest of asyncio: each task has its own loop's token and kind of descriptor.
    reader, writer = os.pipe()
    tokens: dict[str, object] = {}

    async def guest() -> None:
        for _ in range(5):
            await checkpoint()
        tokens["trio"] = current_loop_token()
        descriptor = Descriptor(reader)
        os.write(writer, b"x")
        await descriptor.wait_readable()
        descriptor.close()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        while not done.done():
            assert current_loop_token() is loop
            await checkpoint()
        done.result().unwrap()
        tokens["asyncio"] = current_loop_token()

    asyncio.run(host())
    assert len(set(tokens.values())) == 2
    os.close(reader)
    os.close(writer)


def test_trio_is_found_without_sniffio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.delitem(sys.modules, "sniffio")
        monkeypatch.setattr(_loop, "_trio_says", None)
        assert current_loop_token() is trio.lowlevel.current_trio_token()
        await checkpoint()

    trio.run(main)


def test_the_token_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no event loop is running"):
        current_loop_token()


def test_a_descriptor_may_be_closed_after_its_loop() -> None:
    reader, writer = os.pipe()
    for backend in ("asyncio", "trio"):
        kept: list[Descriptor] = []

        async def main(kept: list[Descriptor] = kept) -> None:
            descriptor = Descriptor(reader)
            with anyio.move_on_after(0):
                await descriptor.wait_readable()
            kept.append(descriptor)

        anyio.run(main, backend=backend)
        kept[0].close()
    os.close(reader)
    os.close(writer)


def test_neither_loop_is_imported_for_the_other() -> None:
    program = (
        "import sys, l5._loop\n"
        "assert 'trio' not in sys.modules and 'asyncio' not in sys.modules, 'imported too early'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
