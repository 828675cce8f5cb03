"""The command ``catfish``: serve an R-tree, fill it, ask it, time it."""

from __future__ import annotations

import typer

from catfish_app._cli_bench import bench
from catfish_app._cli_query import count, load, nearest, search, stats
from catfish_app._cli_serve import serve
from catfish_app._cli_top import top

app = typer.Typer(
    name="catfish",
    help="An R-tree that many processes search, over connections that become shared memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (serve, load, search, nearest, count, stats, bench, top):
    app.command(command.__name__)(command)
