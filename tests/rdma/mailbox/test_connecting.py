"""Connections over the simulated device: upgrading, falling back, ends, threads, forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import l5
import l5.blocking
from l5.rdma import _devices, _simulated
from l5.rdma._simulated import Fabric, Plan, SimulatedBackend
from tests.native import _handlers

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    monkeypatch.setenv("L5_VERBS", "simulated")
    made = Fabric(Plan())
    made.add_device("sim0", "127.0.0.1")
    monkeypatch.setattr(_simulated, "_DEFAULT", [SimulatedBackend(made)])
    yield made
    assert not made.endpoints, "queue pairs are left"
    assert not made.ports["sim0"].regions, "memory regions are left"
    assert not _devices._open


def echo(request: bytes) -> bytes:
    return request


async def test_shared_memory_is_preferred_on_one_host() -> None:
    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as client:
            assert client.transport == "shm"
        async with await l5.connect(server.urls[0], transports="rdma,tcp") as client:
            assert client.transport == "rdma"
            assert await client.request(b"hello") == b"hello"


@pytest.mark.parametrize(
    ("mine", "theirs", "holds"),
    [
        (None, None, "flags+imm"),
        ("flags", None, "flags"),
        (None, "imm", "imm"),
        ("flags", "flags+imm", "flags+imm"),
        ("imm", "flags", "imm"),
    ],
)
async def test_the_later_mode_holds(mine: str | None, theirs: str | None, holds: str) -> None:
    async with l5.serve(echo, "l5+rdma://127.0.0.1:0", rdma_mode=theirs) as server:
        async with await l5.connect(server.urls[0], rdma_mode=mine) as client:
            told = client.statistics().mailbox
            assert told is not None and told.mode == holds
            assert client.upgrade_report.mode == holds
            assert f"rdma ({holds}), upgraded" in str(client.upgrade_report)
    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0], rdma_mode=mine) as client:
            assert client.upgrade_report.mode == ""  # shared memory has one way only


async def test_a_way_that_is_closed_keeps_the_socket(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    from l5.transports import rdma

    monkeypatch.setattr(rdma, "VERIFY_S", 0.2)
    before: Any = _simulated.SimulatedDevice.completion_queue

    def cut(self: Any, depth: int, *, events: bool = False) -> Any:
        fabric.plan.manual = True  # nothing is delivered from now on
        fabric.plan.immediate = False
        return before(self, depth, events=events)

    monkeypatch.setattr(_simulated.SimulatedDevice, "completion_queue", cut)
    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0], transports="rdma") as client:
            assert client.transport == "tcp"
            assert "UDP port 4791" in client.upgrade_report.reasons["rdma"]
            assert await client.request(b"hello") == b"hello"


async def test_an_address_without_a_device_says_so(fabric: Fabric) -> None:
    fabric.ports.clear()
    fabric.add_device("sim0", "10.1.2.3")
    async with l5.serve(echo, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0], transports="rdma") as client:
            assert client.transport == "tcp"
            assert "no RoCE v2 GID for 127.0.0.1" in client.upgrade_report.reasons["rdma"]


async def test_the_end_of_the_socket_ends_the_connection() -> None:
    import socket

    async with l5.serve(echo, "l5+rdma://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"hello") == b"hello"
            life = client._session.fds()[1]
            with socket.socket(fileno=os.dup(life)) as sock:
                sock.shutdown(socket.SHUT_RDWR)
            with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                await client.receive()
            with anyio.fail_after(60):
                while server.statistics().connections:
                    await anyio.sleep(0.005)


async def test_a_broken_queue_pair_ends_the_connection(fabric: Fabric) -> None:
    async with l5.serve(echo, "l5+rdma://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"hello") == b"hello"
            channel: Any = client._session.channel
            fabric.kill(channel._end.pair.number)
            with pytest.raises(anyio.BrokenResourceError):
                await client.request(b"again")
            with anyio.fail_after(60):
                while server.statistics().connections:
                    await anyio.sleep(0.005)


async def test_many_clients_of_one_loop() -> None:
    async with l5.serve(echo, "l5+rdma://127.0.0.1:0", ring="64KiB") as server:
        clients = [await l5.connect(server.urls[0], ring="64KiB") for _ in range(70)]
        try:
            async with anyio.create_task_group() as group:

                async def ask(client: l5.Connection, text: bytes) -> None:
                    for _ in range(3):
                        assert await client.request(text) == text

                for number, client in enumerate(clients):
                    group.start_soon(ask, client, b"from %d" % number)
        finally:
            for client in clients:
                await client.aclose()


async def test_a_fork_leaves_the_parents_connection_alone() -> None:
    async with l5.serve(echo, "l5+rdma://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as client:
            assert await client.request(b"before") == b"before"
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client._session.channel.try_send(1, 0, 0, b"from the child")
                except anyio.ClosedResourceError:
                    status = 0
                finally:
                    os._exit(status)
            _, status = await anyio.to_thread.run_sync(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert await client.request(b"after") == b"after"


async def test_native_services_and_regions_are_reached() -> None:
    service = l5.NativeService(_handlers.address(), keep_alive=_handlers.library())
    region = l5.Region.create(4096, write=True)
    async with l5.serve(service, "l5+rdma://127.0.0.1:0") as server:
        server.export("pages", region)
        async with await l5.connect(server.urls[0]) as client:
            assert client.transport == "rdma"
            assert await client.request(b"echo") == b"echo"
            with pytest.raises(l5.RequestFailed, match="nö such thing"):
                await client.request(b"f")
            remote = await client.open_region("pages")
            await remote.write(64, b"written")
            assert await remote.read(64, 7) == b"written"


def test_threads_without_a_loop() -> None:
    with l5.blocking.serve(echo, "l5+rdma://127.0.0.1:0") as server:
        with l5.blocking.connect(server.urls[0]) as client:
            assert client.transport == "rdma"
            for number in range(40):
                assert client.request(b"%d" % number) == b"%d" % number
            for _ in range(10):  # the server may be looking, or asleep
                assert client.request(bytes(300_000)) == bytes(300_000)
