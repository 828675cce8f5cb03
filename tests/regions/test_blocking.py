"""Remote memory without an event loop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import l5
import l5.blocking
from l5 import native
from tests.regions.test_link import until_true

SIZE = 1 << 20


class Owner:
    """A server in a thread with an event loop of its own."""

    def __init__(self, url: str, **rights: bool) -> None:
        self._url = url
        self._rights = rights
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._revoke = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        import anyio

        async def main() -> None:
            with l5.Region.create(SIZE, **self._rights) as region:
                region.write(0, b"table")
                async with l5.serve(lambda request: request, self._url) as server:
                    server.export("table", region)
                    self.ready.set()
                    revoked = False
                    while not self._stop.is_set():
                        if self._revoke.is_set() and not revoked:
                            revoked = True
                            server.revoke("table")
                        await anyio.sleep(0.002)

        anyio.run(main)

    def revoke(self) -> None:
        self._revoke.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def running(self) -> Generator[Owner]:
        self._thread.start()
        try:
            assert self.ready.wait(60)
            yield self
        finally:
            self.stop()


TRANSPORTS = [
    pytest.param(
        "shm", marks=pytest.mark.skipif(not native.available, reason=native.reason or "-")
    ),
    "unix",
]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_operations(tmp_path: Path, transport: str) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={transport}"
    with Owner(url, write=True, atomic=True).running():
        with l5.blocking.connect(url) as connection:
            assert connection.request(b"x") == b"x"
            with connection.open_region("table") as region:
                assert region.one_sided == (transport == "shm")
                assert region.read(0, 5) == b"table"
                region.write(0, b"chair", timeout=60)
                assert region.read_many([(0, 5), (1, 2)]) == [b"chair", b"ha"]
                assert region.fetch_and_add(8, 3) == 0
                assert region.compare_and_swap(8, 3, 4) == 3
                data = bytes(range(256)) * 2000
                region.write(64, data)
                assert region.read(64, len(data)) == data
                seen: list[int] = []

                def take(offset: int, data: bytes) -> list[tuple[int, int]] | None:
                    seen.append(offset)
                    return [(offset + 8, 8)] if offset < 80 else None

                region.read_each([(0, 8)], take, window=2)
                assert seen == list(range(0, 81, 8))
                with pytest.raises(ZeroDivisionError):
                    region.read_each([(0, 8)], lambda offset, data: [(1 // 0, 1)])
                with pytest.raises(l5.RemoteAccessError):
                    region.read(SIZE, 1)
                if region.mapping is not None:
                    assert region.read_now(0, 5) == bytes(region.mapping[:5]) == b"chair"
            assert region.closed
            with pytest.raises(l5.RemoteAccessError, match="closed here"):
                region.read(0, 1)
            with pytest.raises(l5.RemoteAccessError, match="nothing"):
                connection.open_region("nothing")
            assert connection.request(b"x") == b"x"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_threads(tmp_path: Path, transport: str) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={transport}"
    with Owner(url, write=True, atomic=True).running():
        with l5.blocking.connect(url) as connection:
            failures: list[BaseException] = []

            def work() -> None:
                try:
                    region = connection.open_region("table")
                    for _ in range(20):
                        region.fetch_and_add(8, 1)
                        assert region.read(0, 5) == b"table"
                        assert connection.request(b"x") == b"x"
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures
            assert connection.open_region("table").read(8, 8) == (80).to_bytes(8, "little")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("end", ["revoke", "stop", "close"])
def test_ends(tmp_path: Path, transport: str, end: str) -> None:
    url = f"l5+unix://{tmp_path}/s?transports={transport}"
    with Owner(url).running() as owner:
        with l5.blocking.connect(url) as connection:
            region = connection.open_region("table")
            ended: list[BaseException] = []

            def read_on() -> None:
                try:
                    while True:
                        region.read(0, 5)
                except l5.RemoteAccessError as error:
                    ended.append(error)

            thread = threading.Thread(target=read_on)
            thread.start()
            {"revoke": owner.revoke, "stop": owner.stop, "close": connection.close}[end]()
            thread.join()
            assert ended
            until_true(lambda: region.closed)
            with pytest.raises(l5.RemoteAccessError):
                region.read(0, 5)


def test_only_who_connected(tmp_path: Path) -> None:
    url = f"l5+unix://{tmp_path}/s"
    with l5.blocking.listen(url) as listener, l5.blocking.connect(url) as client:
        with listener.accept() as server, pytest.raises(l5.LocalProtocolError):
            server.open_region("table")
        assert client.transport


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_signals_handler_that_opens_in_the_middle_of_opening(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so, and does not wait for the thread that it interrupts."""
    url = f"l5+unix://{tmp_path}/s"
    with Owner(url).running():
        with l5.blocking.connect(url, transports=transport) as connection:
            told: list[Exception] = []
            make = connection._memory_link

            def handler(number: int, frame: object) -> None:
                try:
                    connection.open_region("table")
                except anyio.BusyResourceError as error:
                    told.append(error)

            def interrupted() -> object:
                signal.raise_signal(signal.SIGUSR1)
                return make()

            monkeypatch.setattr(connection, "_memory_link", interrupted)
            before = signal.signal(signal.SIGUSR1, handler)
            try:
                with connection.open_region("table") as region:
                    assert region.read(0, 5) == b"table"
            finally:
                monkeypatch.undo()
                signal.signal(signal.SIGUSR1, before)
            assert len(told) == 1
            with connection.open_region("table") as region:
                assert region.read(0, 5) == b"table"
