"""A blocking Unix socket, one way: `sendall` of chunks, `recv_into` one buffer."""

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled, views

BLOCKING = True


def set_buffers(sock: Any) -> None:
    """Ask for as much as a ring has; the system gives what its limits allow."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * CHUNK_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * CHUNK_BYTES)


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def run() -> None:
            while True:
                with listener.accept()[0] as sock:
                    set_buffers(sock)
                    drain(sock)

        yield address, run


def drain(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(2 * CHUNK_BYTES))
    while sock.recv_into(buffer[:8], 8, socket.MSG_WAITALL) == 8:
        left = int.from_bytes(buffer[:8], "little")
        while left:
            left -= sock.recv_into(buffer)
        sock.sendall(DONE)


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    [chunk] = views(filled(CHUNK_BYTES))
    size = options["transfer_bytes"]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        set_buffers(sock)

        def transfer() -> int:
            sock.sendall(size.to_bytes(8, "little"))
            for _ in range(size // CHUNK_BYTES):
                sock.sendall(chunk)
            if sock.recv(1) != DONE:
                raise RuntimeError("the receiver lost count")
            return size

        yield transfer
