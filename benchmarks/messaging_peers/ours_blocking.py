"""`l5.blocking`: a plain handler in the connection's thread, and a client without an event loop."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import l5.blocking
from benchmarks.messaging_peers.ours import keywords, url

BLOCKING = True


def echo(request: bytes) -> bytes:
    return request


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with l5.blocking.serve(echo, url(address, options), **keywords(options)) as running:
        yield running.urls[0], running.serve_forever


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    with l5.blocking.connect(address, **keywords(options)) as connection:
        wanted = options.get("transports", "shm")
        if connection.transport != wanted:
            raise RuntimeError(f"meant to measure {wanted}: {connection.upgrade_report}")
        yield connection.request
