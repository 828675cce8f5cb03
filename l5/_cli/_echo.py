"""``l5 echo URL...``: a server that answers each request with itself, until it is told to stop."""

from __future__ import annotations

import signal
from typing import Annotated

import anyio
import typer

import l5
from l5._cli._run import run


def echo(
    urls: Annotated[
        list[str], typer.Argument(help="Where to listen, such as l5://127.0.0.1:7471.")
    ],
    token: Annotated[
        str | None, typer.Option(envvar="L5_TOKEN", help="Better given in L5_TOKEN.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Listen beyond loopback without a token or TLS.")
    ] = False,
) -> None:
    """Serve echoes; SIGTERM and SIGINT let running requests finish."""
    run(lambda: _serve(urls, token, insecure))


def _answer(request: bytes) -> bytes:
    return request


async def _serve(urls: list[str], token: str | None, insecure: bool) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with l5.serve(_answer, *urls, token=token, insecure=insecure) as server:
            for url in server.urls:
                print(f"listening on {url}", flush=True)
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    async for number in signals:
                        print(f"{signal.Signals(number).name}: finishing what runs", flush=True)
                        tasks.cancel_scope.cancel()

                tasks.start_soon(stop)
                await server.wait_closed()
                tasks.cancel_scope.cancel()
