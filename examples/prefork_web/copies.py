"""The same web server as it is without a shared tree: each process builds an index of its own."""

import os

import shapely
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from catfish_app._data import demo_segments

IDS_SHOWN = 20
index = shapely.STRtree(shapely.box(*demo_segments().T))


async def within(request: Request) -> JSONResponse:
    """GET /within?box=x0,y0,x1,y1"""
    try:
        x0, y0, x1, y1 = map(float, request.query_params.get("box", "").split(","))
    except ValueError as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    ids = index.query(shapely.box(x0, y0, x1, y1))
    return JSONResponse({"worker": os.getpid(), "count": len(ids), "ids": ids[:IDS_SHOWN].tolist()})


app = Starlette(routes=[Route("/within", within)])
