"""Metrics of a served tree for prometheus-client (extra ``prometheus``), beside those of l5."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from catfish_app._keeper import SnapshotKeeper
from catfish_app._server import TreeServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["TreeCollector", "exposition", "registry_of", "serve_metrics"]

_INSTALL = "metrics need prometheus-client: pip install 'l5net[prometheus]'"


class TreeCollector:
    """Collects the figures of one served tree: ``REGISTRY.register(TreeCollector(server))``.

    They are read when they are scraped: a scrape visits every node of the tree once.
    """

    def __init__(self, server: TreeServer, keeper: SnapshotKeeper | None = None) -> None:
        self._server = server
        self._keeper = keeper

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics (prometheus-client calls this)."""
        yield from self._tree()
        yield from self._service()
        if self._keeper is not None:
            yield from self._snapshots(self._keeper)

    def _tree(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        shape = self._server.tree.stats()
        yield Gauge("catfish_entries", "Rectangles in the tree", value=shape.entries)
        yield Gauge("catfish_tree_levels", "Levels of the tree", value=shape.height)
        arena = shape.arena_bytes
        yield Gauge("catfish_arena_bytes", "Room of the tree, used or not", value=arena)
        nodes = Gauge("catfish_nodes", "Nodes of the arena", labels=("kind",))
        nodes.add_metric(("leaf",), shape.leaf_nodes)
        nodes.add_metric(("inner",), shape.inner_nodes)
        nodes.add_metric(("free",), shape.free_nodes)
        yield nodes
        fill = Gauge("catfish_fill_ratio", "Share of used entries of the nodes", labels=("kind",))
        fill.add_metric(("leaf",), shape.leaf_fill)
        fill.add_metric(("inner",), shape.inner_fill)
        yield fill

    def _service(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        server = self._server
        workers = 0 if server.native is None else server.native.workers
        connections = server.server.statistics().connections
        busy = Gauge(
            "catfish_busy_ratio", "Useful time over wall time of the last tenths of a second"
        )
        busy.add_metric((), server.busy_share)
        yield busy
        yield Gauge("catfish_workers", "Threads that answer in C; 0: Python does", value=workers)
        yield Gauge("catfish_connections", "Connections that are open", value=connections)
        requests = Counter(
            "catfish_requests",
            "Requests that the server has answered; searches of clients in its memory are not here",
            labels=("operation",),
        )
        for name, count in server.counts().items():
            requests.add_metric((name,), count)
        yield requests

    def _snapshots(self, keeper: SnapshotKeeper) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        failures = keeper.failures
        yield Counter("catfish_snapshot_failures", "Snapshots not written", value=failures)
        if keeper.last is None or keeper.saved_at_s is None:
            return
        for name, text, value in (
            ("timestamp_seconds", "When the snapshot was last the tree", keeper.saved_at_s),
            ("seconds", "How long the last one took", keeper.took_s),
            ("size_bytes", "Size of the last one", keeper.last.size_bytes),
            ("entries", "Rectangles in the last one", keeper.last.entries),
        ):
            yield Gauge(f"catfish_snapshot_{name}", text, value=value)


def registry_of(server: TreeServer, keeper: SnapshotKeeper | None = None) -> CollectorRegistry:
    """Return a registry with the metrics of a tree, of l5, and of this process.

    Raises ModuleNotFoundError, which says what to install.
    """
    try:
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_INSTALL, name=error.name) from None
    from l5.integrations.prometheus import L5Collector

    registry = CollectorRegistry()
    registry.register(TreeCollector(server, keeper))
    registry.register(L5Collector())
    PlatformCollector(registry=registry)
    ProcessCollector(registry=registry)
    return registry


def exposition(
    server: TreeServer, keeper: SnapshotKeeper | None = None
) -> Callable[[], tuple[bytes, str]] | None:
    """Return what gives the metrics as text and its media type; None without prometheus-client."""
    try:
        registry = registry_of(server, keeper)
    except ModuleNotFoundError:
        return None
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)


@contextmanager
def serve_metrics(
    server: TreeServer, host: str, port: int, keeper: SnapshotKeeper | None = None
) -> Generator[str]:
    """Serve the metrics by HTTP from a thread; gives the URL. Raises OSError for a taken port."""
    registry = registry_of(server, keeper)
    from prometheus_client import start_http_server

    web, thread = start_http_server(port, host, registry)
    try:
        address = f"[{host}]" if ":" in host else host
        yield f"http://{address}:{web.server_port}/metrics"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
