"""Calling a user's request handler: plain or `async`, with or without the request's context."""

from __future__ import annotations

import inspect
import logging
import time
import types
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import attrs

from ._errors import MessageTooLarge
from ._loop import checkpoint, stray_cancellation
from ._service_values import HandlerError

if TYPE_CHECKING:
    from ._session import Session
    from ._wait import Waiter
    from .abc import Buffer, PeerInfo

logger = logging.getLogger("l5.server")

Handler = Callable[..., "Buffer | Awaitable[Buffer]"]
"""``handler(request)`` or ``handler(request, context)``, plain or ``async``."""

IN_ROW_MAX = 16
"""Requests of the generic path that are handled in a row, while others may wait in C."""


class NoExceptionRaised(Exception):
    """A handler raised its cause, a `BaseException` such as `GeneratorExit`."""


NO_REPLY = (MessageTooLarge, TypeError, BufferError, ValueError, NoExceptionRaised)
"""What is raised by what a handler returned, and is no trouble of the connection."""


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
    """Tell whether a handler wants the context as its second argument; TypeError: it is none."""
    if not callable(handler):
        raise TypeError(f"a handler is a function of a request, not {handler!r}")
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
    """Return what a handler raised as its answer; raise what ends the task that runs it.

    That is what is meant for the whole program, `KeyboardInterrupt` and `SystemExit`, and this
    task's cancellation.  In a group with others (of the handler's own tasks) these go on alone, or
    a cancelled request would end its server by the rest.
    """
    if isinstance(error, Exception):
        return error
    _raise_what_ends_the_task(error)
    if stray_cancellation(error):
        text = "the handler waited for what was cancelled elsewhere"
        failure: Exception = HandlerError("CancelledError", text)
    else:
        failure = NoExceptionRaised()
    failure.__cause__ = error
    return failure


def _raise_what_ends_the_task(error: BaseException) -> None:
    if not isinstance(error, BaseExceptionGroup):
        if _ends_the_task(error):
            raise error
        return
    group = cast("BaseExceptionGroup[BaseException]", error)
    ending, rest = group.split(_ends_the_task)
    if ending is not None:
        if rest is not None:
            logger.warning("a handler that was being ended raised %r", rest, exc_info=rest)
        raise ending


def _ends_the_task(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return True
    cancelled = isinstance(error, anyio.get_cancelled_exc_class())
    return cancelled and not stray_cancellation(error)


def words_of(error: BaseException) -> tuple[str, str]:
    """Return what the client is told of what a handler raised, whatever that is: type, message."""
    if isinstance(error, NoExceptionRaised) and error.__cause__ is not None:
        error = error.__cause__
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


def step(go_on: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """Take one step of a handler by its `send` or `throw`: (True, reply) or (False, yielded)."""
    try:
        return False, go_on(value)
    except StopIteration as stop:
        return True, stop.value
    except BaseException as error:
        raise settled(error)  # noqa: B904  (it is the same one, or has its cause)


@types.coroutine
def resume(coroutine: Any, yielded: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine of this task that has suspended once, passing everything through.

    The first step of a handler is taken by hand, to see whether it suspends at all; everything
    after it goes through here, in the same task, so that cancel scopes and the like fit.
    """
    done = False
    while not done:
        try:
            sent = yield yielded
        except GeneratorExit:  # this task is thrown away
            coroutine.close()
            raise
        except BaseException as error:
            done, yielded = step(coroutine.throw, error)
        else:
            done, yielded = step(coroutine.send, sent)
    return yielded


def throw_away(coroutine: Any) -> None:
    """End a handler that has suspended, and whose answer nobody waits for any more."""
    try:
        coroutine.close()
    except BaseException as error:
        failure = settled(error)
        logger.warning("a handler that was being ended raised %r", failure, exc_info=failure)


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """Make a coroutine of anything that can be awaited."""
    return await awaitable
