"""What the commands share: running a coroutine, errors as sentences, options, progress."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, NoReturn, TypeVar

import anyio
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import l5
from catfish_app._load import LoadError, Table, read_table
from catfish_app._rtree import TreeFull
from catfish_app._snapshot import SnapshotError

T = TypeVar("T")
USAGE_STATUS = 2


class SearchMode(StrEnum):
    """Who searches."""

    server = "server"
    client = "client"
    adaptive = "adaptive"


Token = Annotated[str | None, typer.Option(envvar="L5_TOKEN", help="Better given in L5_TOKEN.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
By = Annotated[
    SearchMode,
    typer.Option("--mode", help="Who searches: the server, this client, or whoever has time."),
]
Url = Annotated[str, typer.Argument(help="Such as l5+unix:///run/tree.sock or l5://host:7471.")]

_SAID = (
    l5.L5Error,
    LoadError,
    TreeFull,
    SnapshotError,
    ValueError,
    LookupError,
    OSError,
    MemoryError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
)


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on the fastest loop there is.

    What a user can do something about is printed as one sentence, with status 2 for a wrong URL and
    1 for all else; anything else is a bug, and keeps its traceback.
    """
    uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        return anyio.run(function, backend_options={"use_uvloop": uvloop})
    except BaseException as error:
        cause = innermost(error)
        if not isinstance(cause, _SAID):
            raise
        fail(_sentence(cause), USAGE_STATUS if isinstance(cause, l5.AddressError) else 1)


def fail(sentence: str, status: int = 1) -> NoReturn:
    """Print a sentence and end with a status; never returns."""
    print(f"catfish: {sentence}", file=sys.stderr)
    raise typer.Exit(status) from None


def innermost(error: BaseException) -> BaseException:
    """Return what was raised; task groups wrap it, once for each."""
    members: tuple[Any, ...] = getattr(error, "exceptions", ())
    return innermost(members[0]) if len(members) == 1 else error


def _sentence(error: BaseException) -> str:
    if isinstance(error, anyio.BrokenResourceError | anyio.EndOfStream):
        return f"the server closed the connection {error}".strip()
    if isinstance(error, OSError) and error.strerror:  # without the number
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def parse_numbers(text: str, counts: tuple[int, ...], what: str) -> tuple[float, ...]:
    """Read numbers with commas between them; ends the command when they are not."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in counts:
        fail(
            f"{what} {text!r}: wanted are numbers with commas between, such as 5,45,6.5,46",
            USAGE_STATUS,
        )
    return numbers


def read(source: str, layer: str | None, console: Console) -> Table:
    """Read a file under a spinner, and say what it holds."""
    with console.status(f"reading {source}"):
        table = read_table(source, layer=layer)
    notes = [f"{len(table.rects):,} rectangles"]
    if table.crs:
        notes.append(table.crs)
    if table.skipped:
        notes.append(f"{table.skipped:,} features without a geometry left out")
    console.print(f"{table.name}: {', '.join(notes)}", highlight=False)
    return table


def progress_bar(console: Console) -> Progress:
    """Return a bar that counts rows; nothing is drawn where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
