"""Show a served tree to browsers (extra ``http``).

async with serve_map(server, "8080") as url: ...
"""

from catfish_app._map import serve_map

__all__ = ["serve_map"]
