"""Spans and metrics for OpenTelemetry (extra ``otel``).

Spans are made on each side for itself: a frame has no room for a trace's context, and payloads are
the application's.  Who wants one trace across both sides puts the context into the request, and
attaches it in the handler.

    from l5.integrations.opentelemetry import instrument_metrics, traced_handler, traced_request

    reply = await traced_request(conn, b"...")
    async with l5.serve(traced_handler(handle), url): ...
    instrument_metrics()
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, SpanKind, StatusCode

from .. import _live
from .._connection import Connection
from .._errors import RequestFailed
from .._handler import RequestContext, takes_context

if TYPE_CHECKING:
    from ..abc import Buffer

_NAME = "l5"
_COUNTERS: Sequence[tuple[str, str, str]] = (
    ("requests_sent", "l5.client.requests", "Requests sent"),
    ("requests_answered", "l5.server.requests", "Requests of peers answered"),
    ("frames_sent", "l5.frames.sent", "Frames sent"),
    ("frames_received", "l5.frames.received", "Frames received"),
    ("space_waits", "l5.space_waits", "How often a sender waited for room, credit or an answer"),
)


async def traced_request(
    connection: Connection,
    payload: Buffer,
    *,
    deadline: float | None = None,
    name: str = "l5.request",
    tracer: trace.Tracer | None = None,
) -> bytes:
    """Do ``connection.request`` within a span of the client; errors are those of `request`."""
    chosen = tracer or trace.get_tracer(_NAME)
    with chosen.start_as_current_span(name, kind=SpanKind.CLIENT) as span:
        span.set_attribute("rpc.system", _NAME)
        span.set_attribute("network.transport", connection.transport)
        span.set_attribute("network.peer.address", connection.peer.address)
        span.set_attribute("l5.request.size", memoryview(payload).nbytes)
        try:
            reply = await connection.request(payload, deadline=deadline)
        except RequestFailed as error:
            span.set_attribute("error.type", error.remote_type)
            raise
        span.set_attribute("l5.response.size", len(reply))
        return reply


def traced_handler(
    handler: Callable[..., Any],
    *,
    name: str = "l5.handle",
    tracer: trace.Tracer | None = None,
) -> Callable[[bytes, RequestContext], Awaitable[Any]]:
    """Return a handler for `l5.serve` that runs `handler` within a span of the server."""
    with_context = takes_context(handler)

    async def handle(request: bytes, context: RequestContext) -> Any:
        chosen = tracer or trace.get_tracer(_NAME)
        with chosen.start_as_current_span(name, kind=SpanKind.SERVER) as span:
            _describe(span, request, context)
            result = handler(request, context) if with_context else handler(request)
            if inspect.isawaitable(result):
                result = await result
            if result is None:
                span.set_status(StatusCode.ERROR, "the handler returned None")
            else:
                span.set_attribute("l5.response.size", memoryview(result).nbytes)
            return result

    return handle


def _describe(span: Span, request: bytes, context: RequestContext) -> None:
    span.set_attribute("rpc.system", _NAME)
    span.set_attribute("network.transport", context.transport)
    span.set_attribute("network.peer.address", context.peer.address)
    span.set_attribute("l5.request.id", context.id)
    span.set_attribute("l5.request.size", len(request))
    if context.deadline is not None:
        span.set_attribute("l5.request.deadline_s", context.deadline)


def instrument_metrics(meter: metrics.Meter | None = None) -> None:
    """Let a meter observe the counters of this process's connections, when it collects."""
    chosen = meter or metrics.get_meter(_NAME)
    for field, name, text in _COUNTERS:
        chosen.create_observable_counter(name, [_observer(field)], description=text)
    chosen.create_observable_up_down_counter(
        "l5.connections", [_open_connections], description="Connections that are open"
    )


def _observer(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        del options
        for totals in _live.snapshot().totals:
            labels = {"l5.role": totals.role, "network.transport": totals.transport}
            yield Observation(getattr(totals, field), labels)

    return observe


def _open_connections(options: CallbackOptions) -> Iterable[Observation]:
    del options
    counts: dict[tuple[str, str], int] = {}
    for connection in _live.snapshot().connections:
        key = (connection.role, connection.statistics.transport)
        counts[key] = counts.get(key, 0) + 1
    for (role, transport), count in counts.items():
        yield Observation(count, {"l5.role": role, "network.transport": transport})
