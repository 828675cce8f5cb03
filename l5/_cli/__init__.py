"""The command ``l5``: what this machine can do, whether a server answers, and what goes on."""

from __future__ import annotations

import typer

from l5._cli._bench import bench
from l5._cli._dump import dump
from l5._cli._echo import echo
from l5._cli._info import info
from l5._cli._ping import ping
from l5._cli._top import top

app = typer.Typer(
    name="l5",
    help="Connections that become shared memory on one host.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("info")(info)
app.command("ping")(ping)
app.command("echo")(echo)
app.command("top")(top)
app.command("bench")(bench)
app.command("dump")(dump)
