"""Metrics for prometheus-client (extra ``prometheus``): read when they are scraped, free else.

from prometheus_client import REGISTRY
from l5.integrations.prometheus import L5Collector

REGISTRY.register(L5Collector())
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import _live

_TOTALS = (
    ("connections", "Connections made, closed ones included"),
    ("frames_sent", "Frames sent"),
    ("frames_received", "Frames received"),
    ("bytes_sent", "Payload bytes sent over shared memory"),
    ("bytes_received", "Payload bytes received over shared memory"),
    ("requests_sent", "Requests sent"),
    ("requests_answered", "Requests of peers answered, errors included"),
    ("late_answers", "Answers to requests that had been cancelled"),
    ("space_waits", "How often a sender waited for room, credit or an answer"),
)
_SERVER_TOTALS = (
    ("requests", "Requests answered, errors included"),
    ("failed", "Requests whose handler raised"),
    ("cancelled", "Requests that were cancelled"),
    ("rejected", "Handshakes that were turned away"),
)
_LABELS = ("role", "transport")


class L5Collector(Collector):
    """Collects the counters of every connection, server and event loop of this process.

    Labels are the role, the transport and a server's URLs; single connections are not told apart,
    so that the number of series stays bounded.
    """

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics (prometheus-client calls this)."""
        snapshot = _live.snapshot()
        for name, text in _TOTALS:
            family = CounterMetricFamily(f"l5_{name}", text, labels=_LABELS)
            for totals in snapshot.totals:
                family.add_metric((totals.role, totals.transport), getattr(totals, name))
            yield family
        yield from self._gauges(snapshot)
        for name, text in _SERVER_TOTALS:
            family = CounterMetricFamily(f"l5_server_{name}", text, labels=("urls",))
            for server in snapshot.servers:
                family.add_metric((" ".join(server.urls),), getattr(server.statistics, name))
            yield family
        for word in ("spun", "yielded", "slept"):
            seconds = sum(getattr(loop, f"{word}_ns") for loop in snapshot.loops) / 1e9
            text = f"Time the open connections' event loops {word} while they waited"
            yield GaugeMetricFamily(f"l5_{word}_seconds", text, value=seconds)

    def _gauges(self, snapshot: _live.Snapshot) -> Iterator[Metric]:
        opened: dict[tuple[str, str], int] = {}
        waiting: dict[tuple[str, str], int] = {}
        for connection in snapshot.connections:
            counts = connection.statistics
            key = (connection.role, counts.transport)
            opened[key] = opened.get(key, 0) + 1
            waiting[key] = waiting.get(key, 0) + counts.in_flight
        for name, text, values in (
            ("l5_open_connections", "Connections that are open", opened),
            ("l5_in_flight_requests", "Requests without an answer", waiting),
        ):
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for key, value in values.items():
                family.add_metric(key, value)
            yield family
