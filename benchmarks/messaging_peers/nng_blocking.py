"""pynng without an event loop: Req0 and Rep0 over ipc."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pynng

BLOCKING = True


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with pynng.Rep0(listen=f"ipc://{address}") as replier:

        def run() -> None:
            while True:
                replier.send(replier.recv())

        yield f"ipc://{address}", run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    with pynng.Req0(dial=address) as requester:
        send, receive = requester.send, requester.recv

        def request(payload: bytes) -> bytes:
            send(payload)
            return receive()

        yield request
