"""One way, whole messages without an event loop: pyzmq, pynng, multiprocessing.

`options["over"]` says which.  Each makes of a message what its documentation advises for large
ones: pyzmq a frame that is not copied, multiprocessing `recv_bytes_into`, pynng `bytes`.
"""

import importlib
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from multiprocessing.connection import Client, Listener
from typing import Any

import attrs

from benchmarks.messaging_peers.memory import CHUNK_BYTES, DONE, filled, views

BLOCKING = True


@attrs.frozen
class Ways:
    """Of one end: to send a small and a large message, and to receive either."""

    send: Callable[[Any], object]
    send_chunk: Callable[[memoryview], object]
    receive: Callable[[], Any]
    receive_chunk: Callable[[], object]


def drain(ways: Ways) -> None:
    while True:
        for _ in range(int.from_bytes(ways.receive(), "little")):
            ways.receive_chunk()
        ways.send(DONE)


@contextmanager
def zeromq(address: str, listens: bool) -> Generator[Ways]:
    zmq: Any = importlib.import_module("zmq")
    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        (sock.bind if listens else sock.connect)(f"ipc://{address}")
        yield Ways(
            sock.send,
            lambda chunk: sock.send(chunk, copy=False),
            sock.recv,
            lambda: sock.recv(copy=False),
        )


@contextmanager
def nng(address: str, listens: bool) -> Generator[Ways]:
    pynng: Any = importlib.import_module("pynng")
    with pynng.Pair0(**{"listen" if listens else "dial": f"ipc://{address}"}) as pair:
        yield Ways(pair.send, lambda chunk: pair.send(bytes(chunk)), pair.recv, pair.recv)


@contextmanager
def multiprocessing(address: str, listens: bool) -> Generator[Ways]:
    if listens:
        with Listener(address, "AF_UNIX") as listener:
            made = listener.accept()
    else:
        made = Client(address, "AF_UNIX")
    buffer = bytearray(CHUNK_BYTES)
    with closing(made) as connection:
        yield Ways(
            connection.send_bytes,
            connection.send_bytes,
            connection.recv_bytes,
            lambda: connection.recv_bytes_into(buffer),
        )


OVER = {"zeromq": zeromq, "nng": nng, "multiprocessing": multiprocessing}


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    def run() -> None:
        with OVER[options["over"]](address, True) as ways:
            try:
                drain(ways)
            except EOFError:
                pass

    yield address, run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    [chunk] = views(filled(CHUNK_BYTES))
    count = options["transfer_bytes"] // CHUNK_BYTES
    with OVER[options["over"]](address, False) as ways:

        def transfer() -> int:
            ways.send(count.to_bytes(8, "little"))
            for _ in range(count):
                ways.send_chunk(chunk)
            if ways.receive() != DONE:
                raise RuntimeError("the receiver lost count")
            return count * CHUNK_BYTES

        yield transfer
