"""Clients of a served R-tree without an event loop: for scripts, notebooks and threads.

    with catfish_app.blocking.connect("l5+unix:///run/tree.sock") as tree:
        ids = tree.search((5.0, 45.0, 6.0, 46.0), timeout=1.0)

What `catfish_app.RTreeClient` is over `l5`, this is over `l5.blocking`: the same calls, answers and
errors, without ``await``. The server is the same one.
"""

from ._client import IdPieces, RTreeClient, connect
from ._offloading import OffloadingClient

__all__ = ["IdPieces", "OffloadingClient", "RTreeClient", "connect"]
