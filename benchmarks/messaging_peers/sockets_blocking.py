"""A blocking Unix socket with a length before each message: the least that blocks at both ends."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

BLOCKING = True
READ_BYTES = 65536


def receive(sock: socket.socket) -> bytes:
    """Return the next message; most arrive whole in one read."""
    data = sock.recv(READ_BYTES)
    while data and len(data) < 4 + int.from_bytes(data[:4], "little"):
        data += sock.recv(READ_BYTES)
    return data[4:]


def send(sock: socket.socket, message: bytes) -> None:
    sock.sendall(len(message).to_bytes(4, "little") + message)


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)

        def run() -> None:
            while True:
                threading.Thread(target=echo, args=listener.accept()[:1], daemon=True).start()

        yield address, run


def echo(sock: socket.socket) -> None:
    with sock:
        while request := receive(sock):
            send(sock, request)


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)

        def request(payload: bytes) -> bytes:
            send(sock, payload)
            return receive(sock)

        yield request
