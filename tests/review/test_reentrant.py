"""Buffers that run Python code, as any class may have it from 3.12 on, while l5 takes their bytes.

They close the connection, or raise.  A type in C does the same under every Python.
"""

import importlib.machinery
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import l5
from l5 import native

from ..connection._preloaded import compiled

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)


@pytest.fixture(scope="module")
def make_trap(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return what makes a buffer that calls functions as its bytes are taken and released."""
    include = f"-I{sysconfig.get_path('include')}"
    path = compiled("trap", tmp_path_factory.mktemp("trap"), include)
    loader = importlib.machinery.ExtensionFileLoader("trap", path)
    spec = importlib.util.spec_from_loader("trap", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)

    def make(taken: Callable[[], Any] = bool, released: Callable[[], Any] = bool) -> Any:
        return module.Trap(taken, released)

    return make


@pytest.fixture
def ring() -> Iterator[Any]:
    fd = native.lib.l5_segment_create(65536)
    ring = native.Ring(fd, 65536, False, -1, 1024, 1024, False)
    os.close(fd)
    ring.in_flight_max = 10
    ring.peer_window = ring.data_allowed = 1 << 20
    native.Poller(0).add(ring, object())
    yield ring
    ring.close()


CALLS: list[Callable[[Any, Any], Any]] = [
    lambda ring, payload: ring.request(payload),
    lambda ring, payload: ring.send(payload),
    lambda ring, payload: ring.try_send(1, 0, 1, payload),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("moment", ["taken", "released"])
def test_close_from_within_a_buffer(
    make_trap: Callable[..., Any], ring: Any, call: Callable[..., Any], moment: str
) -> None:
    trap = make_trap(**{moment: ring.close})
    try:
        call(ring, trap)
    except Exception as error:
        assert type(error).__name__ == "ClosedResourceError"
    assert ring.frames_sent == (moment == "released")


class Interruption(BaseException):
    """As KeyboardInterrupt is, which would end pytest."""


class Once:
    """Raises an interruption when it is called for the nth time, and only then."""

    def __init__(self, time: int) -> None:
        self.calls, self.time = 0, time

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.time:
            raise Interruption


@pytest.mark.anyio
@pytest.mark.shm
@pytest.mark.parametrize(("before", "time"), [(0, 3), (3, 2)])
async def test_an_interrupt_as_many_are_sent(
    tmp_path: Path, make_trap: Callable[..., Any], before: int, time: int
) -> None:
    """It comes out, also when C has sent some before; the connection goes on without it."""
    async with l5.serve(bytes.upper, f"l5+unix://{tmp_path}/s") as server:
        async with await l5.connect(server.urls[0], transports="shm") as connection:
            once = Once(time)  # before C takes the bytes, Python asks for their size
            batch = [b"a"] * before + [make_trap(once)] + [b"b"]
            with anyio.fail_after(60), pytest.raises(Interruption):
                await connection.request_many(batch)
            assert once.calls == time
            assert await connection.request_many([b"c", make_trap(once)]) == [b"C", b"PAYLOAD"]


@pytest.mark.anyio
@pytest.mark.parametrize("bind", ["shm", "unix"])
@pytest.mark.parametrize("error", [Interruption, ValueError])
async def test_a_reply_that_does_not_give_its_bytes(
    tmp_path: Path, make_trap: Callable[..., Any], bind: str, error: type[BaseException]
) -> None:
    """It fails its request, however the handler came to it; its connection and server go on."""

    def refuse() -> None:
        raise error

    def handle(request: bytes) -> Any:
        return make_trap(refuse) if request == b"trap" else request

    async def handle_later(request: bytes, context: l5.RequestContext) -> Any:
        del context
        await anyio.lowlevel.checkpoint()
        return handle(request)

    for handler in (handle, handle_later):
        async with l5.serve(handler, f"l5+unix://{tmp_path}/s?transports={bind}") as server:
            async with await l5.connect(server.urls[0]) as connection:
                with anyio.fail_after(60):
                    with pytest.raises(l5.RequestFailed, match=error.__name__):
                        await connection.request(b"trap")
                    assert await connection.request(b"x") == b"x"
