"""pyzmq without an event loop: REQ and REP over ipc."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import zmq

BLOCKING = True


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with zmq.Context() as context, context.socket(zmq.REP) as replier:
        replier.bind(f"ipc://{address}")

        def run() -> None:
            while True:
                replier.send(replier.recv())

        yield f"ipc://{address}", run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    with zmq.Context() as context, context.socket(zmq.REQ) as requester:
        requester.connect(address)
        send, receive = requester.send, requester.recv

        def request(payload: bytes) -> bytes:
            send(payload)
            return receive()

        yield request
