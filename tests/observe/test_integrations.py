"""prometheus-client and OpenTelemetry, the real ones."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, generate_latest

import l5
from l5.integrations.opentelemetry import instrument_metrics, traced_handler, traced_request
from l5.integrations.prometheus import L5Collector

pytestmark = pytest.mark.anyio


async def answer(request: bytes) -> bytes:
    await anyio.lowlevel.checkpoint()
    if request == b"boom":
        raise ValueError("no")
    return request


async def test_prometheus_scrapes_counters_that_never_fall() -> None:
    registry = CollectorRegistry()
    registry.register(L5Collector())
    labels = {"role": "client", "transport": "shm"}

    def value(name: str, labels: dict[str, str] = labels) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    before = value("l5_requests_sent_total")
    async with l5.serve(answer, "l5://127.0.0.1:0") as server:
        url = {"urls": server.urls[0]}
        async with await l5.connect(server.urls[0]) as conn:
            for _ in range(5):
                await conn.request(b"x")
            assert value("l5_requests_sent_total") == before + 5
            assert value("l5_open_connections") >= 1
            assert value("l5_server_requests_total", url) == 5
            with pytest.raises(l5.RequestFailed):
                await conn.request(b"boom")
            assert value("l5_server_failed_total", url) == 1
        assert value("l5_requests_sent_total") == before + 6
        assert value("l5_slept_seconds", {}) >= 0
    text = generate_latest(registry).decode()
    assert "# TYPE l5_requests_sent_total counter" in text
    assert 'l5_frames_received_total{role="client",transport="shm"}' in text


async def test_spans_of_both_sides() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    def plain(request: bytes) -> bytes:
        return request * 2

    async with (
        l5.serve(traced_handler(answer, tracer=tracer), "l5://127.0.0.1:0") as server,
        l5.serve(traced_handler(plain, tracer=tracer, name="double"), "l5://127.0.0.1:0") as other,
        await l5.connect(server.urls[0]) as conn,
        await l5.connect(other.urls[0]) as second,
    ):
        assert await traced_request(conn, b"abc", deadline=5.0, tracer=tracer) == b"abc"
        with pytest.raises(l5.RequestFailed):
            await traced_request(conn, b"boom", tracer=tracer)
        assert await traced_request(second, b"ab", tracer=tracer) == b"abab"
    spans: Any = exporter.get_finished_spans()
    assert [(s.name, s.kind) for s in spans] == [
        ("l5.handle", SpanKind.SERVER),
        ("l5.request", SpanKind.CLIENT),
        ("l5.handle", SpanKind.SERVER),
        ("l5.request", SpanKind.CLIENT),
        ("double", SpanKind.SERVER),
        ("l5.request", SpanKind.CLIENT),
    ]
    handled, asked, failed, told = spans[:4]
    assert asked.attributes["l5.request.size"] == 3 and asked.attributes["l5.response.size"] == 3
    assert asked.attributes["network.transport"] == "shm"
    assert 4 < handled.attributes["l5.request.deadline_s"] <= 5
    assert not failed.status.is_ok and failed.events[0].attributes["exception.type"] == "ValueError"
    assert not told.status.is_ok and told.attributes["error.type"] == "ValueError"
    assert spans[4].attributes["l5.response.size"] == 4
    assert handled.context.trace_id != asked.context.trace_id  # spans per side


async def test_a_meter_observes_the_counters() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument_metrics(provider.get_meter("test"))

    def values(name: str) -> dict[tuple[Any, ...], float]:
        data: Any = reader.get_metrics_data()
        found = [m for s in data.resource_metrics[0].scope_metrics for m in s.metrics]
        [metric] = [m for m in found if m.name == name]
        points = metric.data.data_points
        return {tuple(sorted(p.attributes.values())): p.value for p in points}

    async with l5.serve(answer, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as conn:
            before = values("l5.client.requests")["client", "shm"]
            for _ in range(4):
                await conn.request(b"x")
            assert values("l5.client.requests")["client", "shm"] == before + 4
            assert values("l5.connections")["client", "shm"] >= 1
    provider.shutdown()
