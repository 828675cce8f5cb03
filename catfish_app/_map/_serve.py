"""Run the map beside a served tree, on uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn

from catfish_app._client import RTreeClient
from catfish_app._keeper import SnapshotKeeper
from catfish_app._map._app import Map, make_app
from catfish_app._map._live import Live
from catfish_app._metrics import exposition
from catfish_app._place import check_place, is_loopback, parse_place
from catfish_app._server import TreeServer

CONNECTIONS_MAX = 256
GRACE_S = 2
PATIENCE_S = 120.0
"""For the handshake with our own server: both ends wait for the same busy machine."""
LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]"]


class _Server(uvicorn.Server):
    """Leaves signals to the program that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def _bind(place: str, *, insecure: bool) -> socket.socket:
    family, address = check_place(*parse_place(place), insecure=insecure)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()  # so that the URL is good as soon as it is told
    except BaseException:
        bound.close()
        raise
    return bound


@asynccontextmanager
async def serve_map(
    server: TreeServer,
    place: str = "8080",
    *,
    insecure: bool = False,
    interval_s: float = 1.0,
    keeper: SnapshotKeeper | None = None,
    **options: Any,
) -> AsyncGenerator[str]:
    """Serve the map of a served tree; use as ``async with serve_map(server, "8080") as url``.

    `place` is PORT or HOST:PORT, port 0 chooses one; beyond loopback only with `insecure`. The map
    is a client of the tree like any other; `options` are those of `RTreeClient.connect`. Needs
    asyncio (RuntimeError). Raises OSError when the port is taken.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("the map runs on uvicorn, which needs asyncio, not trio") from None
    with _bind(place, insecure=insecure) as bound:
        async with await _connect(server, options) as client, anyio.create_task_group() as tasks:
            live = Live(client, interval_s)
            shown = Map(server, live, exposition(server, keeper))
            web = _Server(_config(make_app(shown, _hosts(bound))))
            ended = anyio.Event()
            tasks.start_soon(_run, web, bound, ended)
            tasks.start_soon(live.run)
            try:
                yield _url(bound)
            finally:
                web.should_exit = True
                live.close()
                with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE_S + 1):
                    await ended.wait()
                tasks.cancel_scope.cancel()


async def _run(web: _Server, bound: socket.socket, ended: anyio.Event) -> None:
    try:
        await web.serve(sockets=[bound])
    finally:
        ended.set()


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        access_log=False,
        http="h11",
        lifespan="off",
        limit_concurrency=CONNECTIONS_MAX,
        log_config=None,  # the program decides about logs
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )


async def _connect(server: TreeServer, options: dict[str, Any]) -> RTreeClient:
    """Connect by the URL that is the least trouble: a Unix socket needs no certificate."""
    urls = sorted(server.urls, key=lambda url: not url.startswith("l5+unix"))
    patient: dict[str, Any] = {"hello_timeout": PATIENCE_S, "connect_timeout": PATIENCE_S}
    return await RTreeClient.connect(urls[0], **patient | options)


def _hosts(bound: socket.socket) -> list[str]:
    """Names that requests may be for: a page of somebody else must not reach us by its own name."""
    return LOOPBACK_NAMES if is_loopback(bound.getsockname()) else ["*"]


def _url(bound: socket.socket) -> str:
    address, port = bound.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/"
