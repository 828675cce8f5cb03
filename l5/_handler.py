"""Calling a user's request handler: plain or `async`, with or without the request's context."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import attrs

from ._loop import checkpoint, stray_cancellation
from ._service_values import HandlerError

if TYPE_CHECKING:
    from ._session import Session
    from ._wait import Waiter
    from .abc import Buffer, PeerInfo

Handler = Callable[..., "Buffer | Awaitable[Buffer]"]
"""``handler(request)`` or ``handler(request, context)``, plain or ``async``."""

IN_ROW_MAX = 16
"""Requests of the generic path that are handled in a row, while others may wait in C."""


@attrs.frozen
class RequestContext:
    """What a handler may know of a request beside its bytes."""

    peer: PeerInfo
    transport: str
    id: int
    deadline: float | None
    """Seconds that were left when the request arrived; None without a deadline."""


class RequestServer(Protocol):
    """Who takes the peer's requests (`l5._serve`)."""

    reads_lanes: bool
    """It reads requests from plain sockets by itself, through the loop's poller."""

    def on_request(
        self, session: Session, id: int, payload: bytes, deadline_us: int | None
    ) -> None:
        """Take a whole request; it owes exactly one answer."""
        ...

    def on_news(self) -> bool:
        """Take notice of requests that were left for it to receive itself; False: it does not."""
        ...

    def on_cancel(self, session: Session, id: int) -> None:
        """The peer lost interest in a request that is not answered yet."""
        ...

    def on_end(self, session: Session) -> None:
        """The session ended or broke."""
        ...


@attrs.define(eq=False)
class Worker:
    """A task that takes requests, and the request that it runs while its handler is suspended."""

    waiter: Waiter
    scope: anyio.CancelScope | None = None
    session: Session | None = None
    id: int = 0
    reason: str = ""
    suspended: bool = False
    """Its handler has been, since `was_cancelled` was asked: only then its scope is cancelled."""
    wakeup: anyio.Event | None = None


Request = tuple["Session", int, bytes, "int | None"]
"""(session, id, payload, microseconds left or None)"""


def takes_context(handler: Handler) -> bool:
    """Tell whether a handler wants the context as its second argument."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False  # a builtin without a signature: bytes in, bytes out
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if len(required) > 2 or not (positional or any(p.kind == p.VAR_POSITIONAL for p in parameters)):
        raise TypeError(
            "a request handler takes the request, and may take a context: "
            f"handler(request) or handler(request, context); got {inspect.signature(handler)}"
        )
    return len(required) == 2


def context_of(session: Session, id: int, deadline_us: int | None) -> RequestContext:
    """Return what a handler may know of a request."""
    deadline = None if deadline_us is None else deadline_us / 1e6
    return RequestContext(session.peer, session.channel.transport, id, deadline)


def deadline_ns(deadline_us: int) -> int:
    """Return when the deadline of a request that has just come is over, by the monotonic clock."""
    return time.monotonic_ns() + deadline_us * 1000


def no_answer(reply: Any) -> TypeError:
    """Explain what is wrong with a handler's result."""
    kind = "None" if reply is None else type(reply).__name__
    return TypeError(f"the request handler returned {kind}; it must return bytes or another buffer")


def settled(error: BaseException) -> Exception:
    """Return what a handler raised as its answer; raise what ends the task that runs it."""
    if isinstance(error, Exception):
        return error
    if not stray_cancellation(error):
        raise error
    failure = HandlerError("CancelledError", "the handler waited for what was cancelled elsewhere")
    failure.__cause__ = error
    return failure


def words_of(error: BaseException) -> tuple[str, str]:
    """Return what the client is told of what a handler raised, whatever that is: type, message."""
    if isinstance(error, HandlerError):
        return _text_of(error.type), _text_of(error.message)
    return type(error).__name__, _text_of(error)


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"its str() raised {type(error).__name__}"


def was_cancelled(worker: Worker) -> bool:
    """Tell whether a worker's scope was cancelled; asked once after its handler had suspended."""
    worker.suspended = False
    return worker.scope is not None and worker.scope.cancel_called


async def end_cancellation(worker: Worker) -> None:
    """Take a cancellation that came as its request ended: the next one is not meant."""
    while worker.scope is not None and worker.scope.cancel_called:
        await checkpoint()


@types.coroutine
def resume(coroutine: Any, yielded: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine of this task that has suspended once, passing everything through.

    The first step of a handler is taken by hand, to see whether it suspends at all; everything
    after it goes through here, in the same task, so that cancel scopes and the like fit.
    """
    try:
        while True:
            try:
                sent = yield yielded
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                yielded = coroutine.throw(error)
            else:
                yielded = coroutine.send(sent)
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        raise settled(error)  # noqa: B904  (it is the same one, or has its cause)


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """Make a coroutine of anything that can be awaited."""
    return await awaitable
