"""The command ``l5``: what this machine can do, and whether a server answers."""

from __future__ import annotations

import typer

from l5._cli._echo import echo
from l5._cli._info import info
from l5._cli._ping import ping

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
