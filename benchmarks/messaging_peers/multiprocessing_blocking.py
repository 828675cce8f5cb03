"""`multiprocessing.connection` over a Unix socket, with `send_bytes` and `recv_bytes`."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Listener
from typing import Any

BLOCKING = True


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with Listener(address, "AF_UNIX", backlog=64) as listener:

        def run() -> None:
            while True:
                threading.Thread(target=echo, args=(listener.accept(),), daemon=True).start()

        yield address, run


def echo(connection: Any) -> None:
    with connection, suppress(EOFError):
        while True:
            connection.send_bytes(connection.recv_bytes())


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    with Client(address, "AF_UNIX") as connection:
        send, receive = connection.send_bytes, connection.recv_bytes

        def request(payload: bytes) -> bytes:
            send(payload)
            return receive()

        yield request
