"""The map's pages and answers: a Starlette application that only reads.

/                   the page; /static/... what it needs
/api/info           the tree's bounds, levels and limits
/api/view           a window: rectangles, or a picture (bytes; facts in the header X-Facts)
/api/level          the nodes of one level in a window (the same)
/api/search         search a box as any client would; who answered, and how long it took
/api/live           samples of the server, one a second, as server-sent events
/metrics            for Prometheus
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import attrs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from catfish_app._map import _picture
from catfish_app._map._live import Live
from catfish_app._monitor import mode_of, path_of
from catfish_app._rtree import RTree
from catfish_app._server import TreeServer

T = TypeVar("T")
STATIC = Path(__file__).with_name("static")
RENDERERS = 2
"""Threads that walk the tree for pictures at once."""
IDS_SHOWN = 100
SAFE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@attrs.define(eq=False)
class Map:
    """What the pages show."""

    server: TreeServer
    live: Live
    metrics: Callable[[], tuple[bytes, str]] | None
    """Return the metrics and their media type; None without prometheus-client."""
    renderers: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(RENDERERS), init=False
    )

    @property
    def tree(self) -> RTree:
        """The tree itself: pictures are drawn beside the server, not by it."""
        return self.server.tree

    async def render(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what walks the tree in a thread."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self.renderers)


def make_app(shown: Map, hosts: list[str]) -> Starlette:
    """Return the application; requests to other names than `hosts` are refused."""
    routes = [
        Route("/", _page),
        Route("/api/info", _info),
        Route("/api/view", _view),
        Route("/api/level", _level),
        Route("/api/search", _search),
        Route("/api/live", _live),
        Route("/metrics", _metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(_Safe),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1),
        ],
        exception_handlers={ValueError: _bad_request, IndexError: _not_found},
    )
    app.state.map = shown
    return app


class _Safe:
    """Adds headers that keep other pages and scripts out."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), text.encode()) for name, text in SAFE.items()]
                names = {name for name, _ in more}
                kept = [pair for pair in message["headers"] if pair[0] not in names]
                message = message | {"headers": [*kept, *more]}
            await send(message)

        await self.app(scope, receive, send_safely)


def _map_of(request: Request) -> Map:
    return request.app.state.map


def _window(request: Request) -> _picture.Window:
    return _picture.parse_window([request.query_params.get(n) for n in ("x0", "y0", "x1", "y1")])


def _integer(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{name} is {text[:20]!r}; it must be a number from 0")
    return int(text)


def _answer(found: _picture.Boxes | _picture.Picture) -> Response:
    facts, body = _picture.facts_of(found)
    return Response(
        body, media_type="application/octet-stream", headers={"X-Facts": json.dumps(facts)}
    )


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _info(request: Request) -> Response:
    shown = _map_of(request)
    levels = await shown.render(_picture.level_counts, shown.tree)
    stats = shown.tree.stats(walk=False)
    return JSONResponse(
        {
            "entries": stats.entries,
            "bounds": shown.tree.bounds,
            "levels": levels,
            "kernel": shown.tree.kernel,
            "urls": shown.server.urls,
            "transport": shown.live.client.connection.transport,
            "mode": mode_of(shown.live.client),
            "boxes_max": _picture.BOXES_MAX,
        }
    )


async def _view(request: Request) -> Response:
    shown, window = _map_of(request), _window(request)
    width, height = _integer(request, "width"), _integer(request, "height")
    return _answer(await shown.render(_picture.look, shown.tree, window, width, height))


async def _level(request: Request) -> Response:
    shown, window, level = _map_of(request), _window(request), _integer(request, "level")
    if not 1 <= level <= _picture.LEVELS_MAX:
        raise IndexError(f"level is {level}; the leaves are 1")
    return _answer(await shown.render(_picture.boxes, shown.tree, level, window))


async def _search(request: Request) -> Response:
    shown, window = _map_of(request), _window(request)
    client = shown.live.client
    began = perf_counter_ns()
    ids = await client.search(window)
    took_us = (perf_counter_ns() - began) / 1e3
    shown_ids = [str(id) for id in ids[:IDS_SHOWN].tolist()]  # JavaScript's numbers end at 2**53
    return JSONResponse(
        {
            "count": len(ids),
            "ids": shown_ids,
            "path": path_of(client),
            "transport": client.connection.transport,
            "took_us": took_us,
        }
    )


async def _live(request: Request) -> Response:
    live = _map_of(request).live
    if not live.admits():
        return JSONResponse({"error": "too many pages are watching"}, status_code=503)

    async def events() -> AsyncIterator[str]:
        async with live.watch() as samples:
            yield _event("history", [sample.as_dict() for sample in live.history])
            async for sample in samples:
                yield _event("sample", sample.as_dict())

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(name: str, content: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"


async def _metrics(request: Request) -> Response:
    shown = _map_of(request)
    if shown.metrics is None:
        return Response("metrics need: pip install 'l5net[prometheus]'\n", status_code=404)
    content, media_type = await shown.render(shown.metrics)
    return Response(content, media_type=media_type)


def _said(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=status)

    return handler


_bad_request = _said(400)
_not_found = _said(404)
