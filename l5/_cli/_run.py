"""How a command runs its coroutine and turns an error into a sentence and an exit status."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import anyio
import typer

from l5._errors import AddressError, L5Error

T = TypeVar("T")
_USAGE_STATUS = 2


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on the fastest loop there is.

    What a user can do something about is printed as one sentence, with status 2 for a wrong URL or
    option and 1 for all else; anything else is a bug, and keeps its traceback.
    """
    uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        return anyio.run(function, backend_options={"use_uvloop": uvloop})
    except BaseException as error:
        cause = _innermost(error)
        if not isinstance(cause, L5Error | OSError | anyio.BrokenResourceError | anyio.EndOfStream):
            raise
        print(f"l5: {_sentence(cause)}", file=sys.stderr)
        raise typer.Exit(_USAGE_STATUS if isinstance(cause, AddressError) else 1) from None


def _innermost(error: BaseException) -> BaseException:
    # Task groups wrap what was raised in them, once for each.
    members = _members(error)
    return _innermost(members[0]) if len(members) == 1 else error


def _members(error: BaseException) -> tuple[BaseException, ...]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions


def _sentence(error: BaseException) -> str:
    if isinstance(error, anyio.BrokenResourceError | anyio.EndOfStream):
        return f"the peer closed the connection {error}".strip()
    if isinstance(error, OSError) and error.strerror:  # without the number
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
