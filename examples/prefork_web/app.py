"""A web server of several processes that search one tree: none of them has a copy of it.

TREE_URL says where the tree is, TREE_MODE who searches it: see README.md.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from catfish_app import RTreeClient

IDS_SHOWN = 20


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """Each worker connects once, after it was started; its requests share the connection."""
    mode: Any = os.environ.get("TREE_MODE", "adaptive")
    async with await RTreeClient.connect(os.environ["TREE_URL"], mode=mode) as tree:
        app.state.tree = tree
        yield


async def within(request: Request) -> JSONResponse:
    """GET /within?box=x0,y0,x1,y1"""
    try:
        box = [float(side) for side in request.query_params.get("box", "").split(",")]
        ids = await request.app.state.tree.search(box)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    return JSONResponse({"worker": os.getpid(), "count": len(ids), "ids": ids[:IDS_SHOWN].tolist()})


app = Starlette(routes=[Route("/within", within)], lifespan=lifespan)
