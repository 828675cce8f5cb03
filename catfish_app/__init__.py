"""An R-tree that many processes search: `catfish_app` serves it over `l5` connections.

    async with serve_tree(RTree.bulk(rectangles), "l5+unix:///run/tree.sock") as server: ...

    async with await RTreeClient.connect("l5+unix:///run/tree.sock") as tree:
        ids = await tree.search((5.0, 45.0, 6.0, 46.0))

How the package is laid out: `native/rt_*` is the tree in C and `_rtree` its Python type;
`_wire` is the protocol, `native/service_*` answers it in C and `_handler` in Python; `_server` and
`_client` are the two ends, `blocking` is the client's without an event loop, and `_requests`,
`_mapped` and `_ways` what both clients have in common; `_load` reads files, `_snapshot` is the tree
in a file, `_geo` the bridge to geopandas; `map` shows a tree to browsers, `_metrics` and `_monitor`
what it does; `_cli` is the command ``catfish``; `demo` is ``python -m catfish_app.demo``.
"""

from importlib.util import find_spec

if find_spec("numpy") is None:  # the command `catfish` says so, without a traceback

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ImportError(
            "catfish_app needs numpy, which is not installed."
            " Install the extra with: pip install 'l5net[catfish]'"
        )
else:
    from catfish_app._client import BusyError, IdPieces, RTreeClient
    from catfish_app._geo import GeoIndex, from_geodataframe
    from catfish_app._handler import TreeHandler
    from catfish_app._metrics import TreeCollector
    from catfish_app._offloading import OffloadingClient, OffloadStatistics, SearchReport
    from catfish_app._rtree import RTree, TreeFull, TreeStats
    from catfish_app._server import NativeTree, TreeServer, serve_tree
    from catfish_app._snapshot import SnapshotError
    from catfish_app._wire import ServiceStats

__all__ = [
    "BusyError",
    "GeoIndex",
    "IdPieces",
    "NativeTree",
    "OffloadStatistics",
    "OffloadingClient",
    "RTree",
    "RTreeClient",
    "SearchReport",
    "ServiceStats",
    "SnapshotError",
    "TreeCollector",
    "TreeFull",
    "TreeHandler",
    "TreeServer",
    "TreeStats",
    "from_geodataframe",
    "serve_tree",
]
