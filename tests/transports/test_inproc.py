"""What only the in-process transport does: names, two loops in two threads, its doorbell."""

import threading

import anyio
import pytest

from l5._frames import Kind
from l5._options import ListenOptions, Options
from l5.abc import Channel
from l5.transports.inproc import InprocTransport
from tests.transports._support import LIMIT, address, channels, receive

URL = "l5+inproc://test-inproc"


@pytest.mark.anyio
async def test_an_unknown_name_lists_the_known_ones() -> None:
    transport = InprocTransport()
    with pytest.raises(ConnectionRefusedError, match=r"'nobody'; there are: none"):
        await transport.connect(address("l5+inproc://nobody"), Options())
    listener = await transport.listen(address(URL), ListenOptions())
    with pytest.raises(ConnectionRefusedError, match=r"'nobody'; there are: test-inproc"):
        await transport.connect(address("l5+inproc://nobody"), Options())
    with pytest.raises(OSError, match="has that name already"):
        await transport.listen(address(URL), ListenOptions())
    listener.close()


@pytest.mark.anyio
async def test_links_that_nobody_accepted_end_with_the_listener() -> None:
    transport = InprocTransport()
    listener = await transport.listen(address(URL), ListenOptions())
    link = await transport.connect(address(URL), Options())
    listener.close()
    with pytest.raises(anyio.EndOfStream):
        await link.receive(1)
    link.abort()


@pytest.mark.anyio
async def test_the_bell_rings_only_for_those_who_sleep(tmp_path) -> None:
    async with channels("inproc", tmp_path) as (near, far):
        near.try_send(Kind.DATA, 0, 0, b"x")
        with pytest.raises(BlockingIOError):
            far._bell.recv(1)
        assert far.try_receive() is not None
        assert far.arm()
        for _ in range(3):
            near.try_send(Kind.DATA, 0, 0, b"x")
        assert far._bell.recv(100) == b"\0"


@pytest.mark.anyio
async def test_a_frame_larger_than_the_queue_goes_through_alone(tmp_path) -> None:
    async with channels("inproc", tmp_path, limit=3_000_000) as (near, far):
        assert near.try_send(Kind.DATA, 0, 0, bytes(3_000_000))
        assert not near.try_send(Kind.DATA, 0, 1, b"")
        assert near.arm(space=True)
        assert len((await receive(far)).payload) == 3_000_000
        assert near._bell.recv(100) == b"\0"
        assert not near.arm(space=True)
        assert near.try_send(Kind.DATA, 0, 1, b"")


def test_two_loops_in_two_threads() -> None:
    # Every hand-over between the threads passes through arm, re-check and bell.
    count = 3000
    ready = threading.Event()
    failures: list[BaseException] = []

    async def exchange(channel: Channel, *, first: bool) -> None:
        for number in range(count):
            size = number % LIMIT
            if first:
                assert channel.try_send(Kind.REQUEST, 0, number, bytes(size))
            got = await receive(channel)
            assert (got.id, len(got.payload)) == (number, size)
            if not first:
                assert channel.try_send(Kind.RESPONSE, 0, number, got.payload)

    async def server() -> None:
        listener = await InprocTransport().listen(address(URL), ListenOptions())
        ready.set()
        link = await listener.accept()
        channel = link.into_channel(send_limit=LIMIT, receive_limit=LIMIT)
        with anyio.fail_after(60):
            await exchange(channel, first=False)
        with pytest.raises(anyio.EndOfStream):
            await receive(channel)
        channel.close()
        listener.close()

    async def client() -> None:
        link = await InprocTransport().connect(address(URL), Options())
        channel = link.into_channel(send_limit=LIMIT, receive_limit=LIMIT)
        with anyio.fail_after(60):
            await exchange(channel, first=True)
        channel.close()

    def run() -> None:
        try:
            anyio.run(server, backend="trio")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    anyio.run(client)
    thread.join()
    assert not failures


def test_streams_between_two_threads_with_back_pressure() -> None:
    count = 3000
    ready = threading.Event()
    failures: list[BaseException] = []

    async def server() -> None:
        listener = await InprocTransport().listen(address(URL), ListenOptions())
        ready.set()
        link = await listener.accept()
        channel = link.into_channel(send_limit=LIMIT, receive_limit=LIMIT)
        with anyio.fail_after(60):
            for number in range(count):
                assert (await receive(channel)).id == number
        channel.close()
        listener.close()

    async def client() -> None:
        link = await InprocTransport().connect(address(URL), Options())
        channel = link.into_channel(send_limit=LIMIT, receive_limit=LIMIT)
        with anyio.fail_after(60):
            for number in range(count):
                while not channel.try_send(Kind.DATA, 0, number, bytes(LIMIT)):
                    if channel.arm(space=True):
                        await anyio.wait_readable(channel.fileno())
                        channel.disarm()
                        channel.on_event()
            with pytest.raises(anyio.EndOfStream):
                await receive(channel)
        channel.close()

    def run() -> None:
        try:
            anyio.run(server)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    anyio.run(client)
    thread.join()
    assert not failures
